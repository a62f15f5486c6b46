"""What every exit layer held while the target read its own answers, and what the full model says there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from builder.exits.passages import Part, Passage
from builder.runtime.batch import block_tables, ragged
from builder.runtime.runner import GreedyRunner

TOP = 32  # most probable tokens kept of the full model's distribution; the rest counts as "another token"
_ROWS = 512  # of a pass


@dataclass(frozen=True)
class States:
    """One row for each token of the answers: what is known before it is chosen.

    hidden float32 [layers, rows, hidden_size], in the order of the exit layers; best int32 [rows], the full model's token;
    lens bool [layers, rows]: the final norm and head on the raw state say the same token (false where nobody asked: only HELD_OUT);
    likely int32 and probabilities bfloat16 [learned rows, TOP] of the rows in LEARN; lengths and parts int32 [answers];
    counts int32 [vocabulary]: how often LEARN has each token.
    """

    hidden: Tensor
    best: Tensor
    lens: Tensor
    likely: Tensor
    probabilities: Tensor
    lengths: Tensor
    parts: Tensor
    counts: Tensor

    def rows_of(self, part: Part) -> Tensor:
        """bool [rows]"""
        return torch.repeat_interleave(self.parts == part, self.lengths)

    def lengths_of(self, part: Part) -> tuple[int, ...]:
        return tuple(self.lengths[self.parts == part].tolist())

    def save(self, path: Path) -> None:
        """Complete or not at all."""
        staged = path.with_name(f".{path.name}")
        save_file({field.name: getattr(self, field.name).contiguous() for field in fields(self)}, str(staged))
        staged.replace(path)


def load_states(path: Path) -> States | None:
    """None when there is none, or it cannot be read: it is then made again."""
    try:
        return States(**load_file(str(path)))
    except (OSError, SafetensorError, TypeError):
        return None


def joined(parts: Sequence[States]) -> States:
    """The rows of all, in order."""

    def together(name: str) -> Tensor:
        tensors = [getattr(part, name) for part in parts]
        if name == "counts":
            return torch.stack(tensors).sum(0, dtype=torch.int32)
        return torch.cat(tensors, dim=1 if name in ("hidden", "lens") else 0)

    return States(**{field.name: together(field.name) for field in fields(States)})


@torch.inference_mode()
def read_states(runner: GreedyRunner, passages: Sequence[Passage], layers: Sequence[int], block_size: int) -> States:
    """Run the answers through the target as serving does, in passes of several; its KV cache is written over from block 0 on."""
    return joined([_read(runner, group, layers, block_size) for group in _groups(passages)])


def _groups(passages: Sequence[Passage]) -> Iterator[list[Passage]]:
    group: list[Passage] = []
    for passage in passages:
        group.append(passage)
        if sum(len(each.prompt) + each.rows for each in group) >= _ROWS:
            yield group
            group = []
    if group:
        yield group


def _read(runner: GreedyRunner, passages: Sequence[Passage], layers: Sequence[int], block_size: int) -> States:
    ids = [(*passage.prompt, *passage.answer[:-1]) for passage in passages]
    used, tables = 0, []
    for tokens in ids:
        blocks = -(-len(tokens) // block_size)
        tables.append(range(used, used + blocks))
        used += blocks
    rows, ends = ragged([(place, 0, tokens) for place, tokens in enumerate(ids)], block_tables(tables))
    wanted = torch.cat([torch.arange(end - passage.rows, end) for end, passage in zip(ends, passages, strict=True)])
    hidden, kept = runner.embed(rows), []
    for start, stop in zip((0, *layers), (*layers, runner.config.num_layers), strict=True):
        hidden = runner.layers(hidden, rows, start, stop)
        kept.append(hidden[wanted])
    *exits, last = kept
    lengths, parts = torch.tensor([p.rows for p in passages]), torch.tensor([int(p.part) for p in passages])
    learned, held_out = (torch.repeat_interleave(parts == part, lengths) for part in (Part.LEARN, Part.HELD_OUT))
    best = torch.tensor(runner.greedy(last), dtype=torch.int32)
    lens = torch.zeros(len(layers), len(best), dtype=torch.bool)
    if bool(held_out.any()):
        for place, state in enumerate(exits):
            lens[place, held_out] = torch.tensor(runner.greedy(state[held_out]), dtype=torch.int32) == best[held_out]
    likely, probabilities = _likely(runner, last[learned])
    counts = torch.bincount(best[learned].long(), minlength=runner.config.vocab_size)
    numbers = (lengths.int(), parts.int(), counts.int())
    return States(torch.stack(exits), best, lens, likely, probabilities, *numbers)


def _likely(runner: GreedyRunner, hidden: Tensor) -> tuple[Tensor, Tensor]:
    top = min(TOP, runner.config.vocab_size)
    if not len(hidden):
        return torch.zeros(0, top, dtype=torch.int32), torch.zeros(0, top, dtype=torch.bfloat16)
    logits = runner.head(hidden)
    values, likely = logits.topk(top)
    return likely.int(), (values - logits.logsumexp(-1, keepdim=True)).exp().bfloat16()
