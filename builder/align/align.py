"""The whole way: the target writes, the draft learns, both drafts are measured on held-out prompts, the better one is kept."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.align.acceptance import DRAFT_TOKENS, described, measure, total
from builder.align.corpus import Sample, fitting_tokens, text_samples, write_samples
from builder.align.matrices import Learnable
from builder.align.memory import keep_freed_memory
from builder.align.progress_file import EVERY, Standing, read_standing, write_standing
from builder.align.prompts import Prompt
from builder.align.recipe import RESULT_FILE, AlignmentRecipe
from builder.align.staging import Parts, staged, staged_engine, staged_tokenizer
from builder.align.teacher import Teacher
from builder.align.training import Training
from builder.align.vocabulary import token_counts, write_counts
from builder.bench.acceptance import Acceptance
from builder.compile.torch_aot.folder import read_info, write_folder
from builder.compile.torch_aot.unpacking import read_tensors
from builder.errors import BuildError
from builder.progress import Progress
from builder.spec.pipeline import PipelineSpec

WRITING_SHARE = (
    0.15  # of the time, for the target's text: it writes 400 tokens a second where 150 are learned, and a second look costs less
)
MEASURING_SHARE = 0.1  # once this is spent no further held-out prompts are begun; the second measurement takes as long again
MOST_HELD_OUT = 32  # prompts measured: the user's own first
_PORTION = 8  # prompts measured between two looks at the clock
_SPREAD = 1.2  # the second measurement, and writing the engine, may take this much longer than the first measurement


@dataclass(frozen=True)
class Limits:
    """Time alone limits by default, so two runs of one seed differ a little. With both counts set they are the same to the bit."""

    seconds: float
    samples: int | None = None  # rounds over all prompts
    steps: int | None = None


class Budget:
    """Seconds spent, those of earlier interrupted runs included, shown as a bar of seconds."""

    def __init__(self, limits: Limits, spent: float, progress: Progress, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._progress = progress
        self._clock = clock
        self._began = clock() - spent
        self._shown = 0
        progress.stage("align the draft, seconds", max(1, int(limits.seconds)))

    def spent(self) -> float:
        spent = self._clock() - self._began
        while self._shown < int(min(spent, self.limits.seconds)):
            self._shown += 1
            self._progress.advance(f"{self._shown} s")
        return spent


def align(
    folder: Path,
    fingerprint: str,
    recipe: AlignmentRecipe,
    parts: Parts,
    spec: PipelineSpec,
    standing_file: Path,
    progress: Progress,
    *,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fill `folder` with the aligned draft engine, or with the unaligned one if acceptance did not rise, and alignment.json.

    `standing_file` says where an interrupted run stands; it is gone when this returns. Raises BuildError or EngineError.
    """
    keep_freed_memory()
    standing = read_standing(standing_file)
    budget = Budget(limits or Limits(recipe.minutes * 60), standing.seconds if standing else 0.0, progress, clock)
    began = budget.spent()
    before, measured = _before(recipe, parts, spec, budget)
    reserve = _SPREAD * (budget.spent() - began)
    samples = standing.samples if standing else _corpus(recipe, parts, spec, budget)
    if not samples:
        raise BuildError("the target wrote nothing to align the draft on", mend="Give draft.alignment more minutes, or set it to null")
    training = _training(recipe, parts, spec, samples)
    if standing:
        training.restore(standing.training)
    _train(training, samples, standing_file, budget, standing.began if standing else budget.spent(), reserve)
    info = replace(read_info(parts.draft), fingerprint=fingerprint)
    write_folder(folder, info, {**read_tensors(parts.draft), **training.draft.packed()})
    after = _acceptance(measured, parts, folder, spec)
    kept = total(list(after.values())).rate > total(list(before.values())).rate
    if not kept:
        shutil.rmtree(folder)  # the measured engine may still be mapped: its file must not be written over
        write_folder(folder, info, read_tensors(parts.draft))
    result = {
        "before": described(before),
        "after": described(after),
        "kept": kept,
        "steps": training.steps,
        "tokens": sum(sample.rows for sample in samples),
        "seconds": round(budget.spent(), 1),
    }
    write_counts(folder, token_counts(samples))
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    standing_file.unlink(missing_ok=True)


def _before(recipe: AlignmentRecipe, parts: Parts, spec: PipelineSpec, budget: Budget) -> tuple[dict[str, Acceptance], Sequence[Prompt]]:
    """Acceptance of the unaligned draft, and the prompts it was measured on: fewer on a machine too slow or busy for all of them."""
    held_out = sorted(
        (prompt for prompt in recipe.prompts if prompt.held_out), key=lambda prompt: (prompt.category != "yours", prompt.number)
    )
    wanted = held_out[:MOST_HELD_OUT]
    until = budget.spent() + MEASURING_SHARE * budget.limits.seconds
    found: dict[str, Acceptance] = {}
    for taken in range(0, len(wanted), _PORTION):
        if taken and budget.limits.steps is None and budget.spent() > until:
            return found, wanted[:taken]
        for category, part in _acceptance(wanted[taken : taken + _PORTION], parts, parts.draft, spec).items():
            found[category] = total([part, found[category]]) if category in found else part
    return found, wanted


def _acceptance(prompts: Sequence[Prompt], parts: Parts, draft: Path, spec: PipelineSpec) -> dict[str, Acceptance]:
    with staged(parts, draft) as folder:
        engine, tokenizer = staged_engine(folder, spec, DRAFT_TOKENS), staged_tokenizer(folder)
        room = engine.settings.max_seq_len
        return measure(engine, [(prompt.category, fitting_tokens(prompt, tokenizer, room)) for prompt in prompts])


def _corpus(recipe: AlignmentRecipe, parts: Parts, spec: PipelineSpec, budget: Budget) -> list[Sample]:
    learned = sorted((prompt for prompt in recipe.prompts if not prompt.held_out), key=lambda prompt: prompt.number)
    limits, until = budget.limits, budget.spent() + WRITING_SHARE * budget.limits.seconds

    def over() -> bool:
        return budget.spent() > until and limits.samples is None

    with staged(parts, None) as folder:
        engine, tokenizer = staged_engine(folder, spec, 0), staged_tokenizer(folder)
        room = engine.settings.max_seq_len
        asked = [fitting_tokens(prompt, tokenizer, room) for prompt in learned if prompt.kind != "text"]
        written = write_samples(engine, asked, seed=recipe.seed, samples=limits.samples, over=over)
        return written + text_samples([prompt for prompt in learned if prompt.kind == "text"], tokenizer, room)


def _training(recipe: AlignmentRecipe, parts: Parts, spec: PipelineSpec, samples: Sequence[Sample]) -> Training:
    shared = spec.draft is not None and spec.draft.from_target
    config = read_info(parts.draft).model
    draft_tensors = read_tensors(parts.draft)
    teacher = Teacher(read_tensors(parts.target), read_info(parts.target).model, config.num_layers if shared else 0)
    embedding = draft_tensors.get("embed", teacher.embedding)
    draft = Learnable(draft_tensors)
    return Training(draft, config, embedding, teacher, samples, shared=shared, round_length=DRAFT_TOKENS, seed=recipe.seed)


def _train(training: Training, samples: Sequence[Sample], standing_file: Path, budget: Budget, began: float, reserve: float) -> None:
    """Until the time less `reserve`, or the steps, are used up; where it stands is written every half minute."""
    limits = budget.limits
    end = limits.seconds - reserve
    written = budget.spent()

    def part() -> float:
        if limits.steps is not None:
            return training.steps / limits.steps
        return (budget.spent() - began) / (end - began) if began < end else 1.0

    def after_step(_loss: float) -> None:
        nonlocal written
        if (spent := budget.spent()) - written >= EVERY:
            written = spent
            write_standing(standing_file, Standing(samples, spent, began, training.state()))

    write_standing(standing_file, Standing(samples, written, began, training.state()))
    training.run(part, after_step)
