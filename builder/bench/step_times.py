"""How long one plain target step, one draft step and one verify pass take, at one stream, on this machine now."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from builder.plan.cost import StepTimes
from builder.repository.engine import open_runners
from builder.runtime.runner import Rows, Runner
from builder.spec.pipeline import PipelineSpec

CONTEXT = 128  # position of the measured rows: a short chat
REPEATS = 30


def measure_step_times(folder: Path, spec: PipelineSpec, *, repeats: int = REPEATS) -> StepTimes:
    """Medians in seconds for a `<p>_decode/N` folder; the three passes alternate, so a change of clock speed hits all alike."""
    target, draft = open_runners(folder, spec)
    block_size = spec.engine.kv_cache.block_size
    blocks = -(-spec.engine.max_seq_len // block_size)
    target.allocate_cache(blocks, block_size)
    if draft is not None:
        draft.allocate_cache(blocks, block_size)
    start = min(CONTEXT, spec.engine.max_seq_len - spec.speculation.max_draft_tokens - 1)
    one, many = rows_at(start, 1, blocks), rows_at(start, 1 + spec.speculation.max_draft_tokens, blocks)
    passes: dict[str, Callable[[], object]] = {"plain": lambda: run_pass(target, one), "verify": lambda: run_pass(target, many)}
    if draft is not None:
        passes["draft"] = lambda: run_pass(draft, one)
    samples: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(repeats):
        for name, run in passes.items():
            run()  # once for the caches: a step follows one of its own kind more often than not
            began = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return StepTimes(plain=medians["plain"], draft=medians.get("draft", 0.0), verify=medians["verify"])


def rows_at(start: int, count: int, blocks: int) -> Rows:
    """`count` rows of one sequence from position `start`; which tokens they are changes no time."""
    numbers = torch.arange(count, dtype=torch.int32)
    return Rows(numbers, numbers + start, torch.zeros_like(numbers), torch.arange(blocks, dtype=torch.int32)[None])


def run_pass(runner: Runner, rows: Rows) -> torch.Tensor:
    """A whole pass, down to the token each row would give: int64 [rows]."""
    return runner.head(runner.layers(runner.embed(rows), rows, 0, runner.config.num_layers)).argmax(-1)
