"""The tokens a draft may propose: those its target writes most often. The draft's head then scores only their rows.

A draft is exact with any vocabulary: q is 0 outside it, a token there is never drafted, and the acceptance rule gives the target its
full probability for it (min(1, p/q) for what is drafted, max(p - q, 0) after a refusal).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from builder.align.corpus import Sample, fitting_tokens, write_samples
from builder.align.recipe import RESULT_FILE, AlignmentRecipe
from builder.align.staging import Parts, staged, staged_engine, staged_tokenizer
from builder.compile.torch_aot.folder import read_info, write_folder
from builder.compile.torch_aot.packing import pack_int4, pack_scales, pad_outputs
from builder.compile.torch_aot.unpacking import read_tensors, unpack_int4, unpack_scales
from builder.runtime.runners.torch_aot import VOCABULARY
from builder.spec.pipeline import PipelineSpec

COUNTS_FILE = "token_counts.json"  # in an aligned engine's folder: how often each token is in the text it was aligned on
_UNPACK_PACK = {"weight": (unpack_int4, pack_int4), "scale": (unpack_scales, pack_scales), "minimum": (unpack_scales, pack_scales)}


def token_counts(samples: Iterable[Sample]) -> Counter[int]:
    """How often the target wrote each token; a prompt's tokens count once a sample too, since answers take words from it."""
    return Counter(token for sample in samples for token in sample.ids)


def write_counts(folder: Path, counts: Mapping[int, int]) -> None:
    (folder / COUNTS_FILE).write_text(json.dumps(sorted(counts.items())) + "\n", encoding="utf-8")


def read_counts(folder: Path) -> Counter[int] | None:
    """None when the engine was not aligned, or before counts were kept."""
    path = folder / COUNTS_FILE
    return Counter(dict(json.loads(path.read_text(encoding="utf-8")))) if path.is_file() else None


def cut_vocabulary(
    whole: Path, fingerprint: str, size: int, counted: AlignmentRecipe, parts: Parts, spec: PipelineSpec, folder: Path
) -> None:
    """Fill `folder` with the draft engine of `whole`, its head cut to `size` tokens; what its alignment came to stays beside it."""
    counts = read_counts(whole) or _count_target(counted, parts, spec)
    info = read_info(whole)
    ids = most_frequent(counts, size, info.model.vocab_size, info.model.eos_token_ids)
    write_folder(folder, replace(info, fingerprint=fingerprint, vocabulary=len(ids)), trimmed(read_tensors(whole), ids))
    if (whole / RESULT_FILE).is_file():
        shutil.copyfile(whole / RESULT_FILE, folder / RESULT_FILE)


def _count_target(recipe: AlignmentRecipe, parts: Parts, spec: PipelineSpec) -> Counter[int]:
    """Counts for a draft that is not aligned: the target answers every prompt once, greedily."""
    with staged(parts, None) as folder:
        engine, tokenizer = staged_engine(folder, spec, 0), staged_tokenizer(folder)
        asked = [fitting_tokens(prompt, tokenizer, engine.settings.max_seq_len) for prompt in recipe.prompts if not prompt.held_out]
        return token_counts(write_samples(engine, asked, seed=recipe.seed, samples=1))


def most_frequent(counts: Mapping[int, int], size: int, vocab_size: int, always: Sequence[int]) -> list[int]:
    """`size` ids, ascending: `always` (ends of a sequence), then by count, then by id: tokenizers number merges by frequency."""
    first = set(always)
    return sorted(sorted(range(vocab_size), key=lambda token: (token not in first, -counts.get(token, 0), token))[:size])


def trimmed(tensors: Mapping[str, Tensor], ids: Sequence[int]) -> dict[str, Tensor]:
    """The packed INT4 tensors with a head of the rows `ids` (padded to a whole work unit), and `ids` as `vocabulary`."""
    rows = torch.tensor(ids)
    cut = dict(tensors)
    for part, (unpack, pack) in _UNPACK_PACK.items():
        if (name := f"head.{part}") in tensors:
            cut[name] = pack(pad_outputs(unpack(tensors[name])[rows]))
    return {**cut, VOCABULARY: rows.int()}
