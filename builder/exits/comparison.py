"""Kinds of exit head, trained on the same text (`python -m builder.compare_heads` prints them)."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from builder.align.functions import Imitation
from builder.align.memory import keep_freed_memory
from builder.align.staging import Parts
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.library import LIBRARY
from builder.compile.torch_aot.unpacking import read_tensors, unpack_dense
from builder.exits.block import BlockHead
from builder.exits.calibrate import MLP_WIDTH
from builder.exits.head import LearnableHead
from builder.exits.passages import Part
from builder.exits.states import States
from builder.exits.training import LEARNING_RATE, ROWS, Lessons
from builder.runtime.batch import block_tables, ragged
from builder.runtime.runners.exit_head import load_exit_head
from builder.runtime.runners.torch_aot import load_runner

LEVEL = 0.02  # share of all tokens that leave and are wrong
TIMED = 200  # exits


@dataclass(frozen=True)
class Row:
    """Shares of held-out tokens: `agreement` with the full model, `leaving` those that may at LEVEL; and milliseconds of one row's exit."""

    layer: int
    kind: str
    before: float
    agreement: float
    leaving: float
    milliseconds: float


def compare(
    states: States, kept: Tensor, parts: Parts, layers: Sequence[int], epochs: int, say: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Every kind at every exit layer, in the order of the layers of `states`; kept int32 [kept], ids of the heads' rows."""
    keep_freed_memory()
    info, target = read_info(parts.target), read_tensors(parts.target)
    rows = unpack_dense(target["head.weight"])[: info.model.vocab_size][kept].float()
    eps = info.model.rms_norm_eps
    kinds: dict[str, Callable[[int], LearnableHead]] = {
        "affine map": lambda _: LearnableHead(target["norm"], rows, 0, eps, seed=0),
        "map and MLP": lambda _: LearnableHead(target["norm"], rows, MLP_WIDTH, eps, seed=0),
        "transformer block": lambda layer: BlockHead(target, info.model, layer, rows, seed=0),
    }
    found = []
    for place, layer in enumerate(layers):
        for kind, make in kinds.items():
            began = time.monotonic()
            head = make(layer)
            before, _ = _judge(head, states, place, kept)
            _train(head, states, place, kept, epochs)
            agreement, leaving = _judge(head, states, place, kept)
            found.append(Row(layer, kind, before, agreement, leaving, _time(head, layer, parts, kept)))
            say(f"{found[-1]}, trained {time.monotonic() - began:.0f} s on {int(states.rows_of(Part.LEARN).sum())} tokens")
    return found


def _train(head: LearnableHead, states: States, place: int, kept: Tensor, epochs: int) -> None:
    """Whole answers, about ROWS rows a step, so that a head may look back; the same steps for every kind."""
    learned = states.rows_of(Part.LEARN)
    lessons = Lessons.of(states.hidden[place][learned], states.likely, states.probabilities, kept)
    lengths = states.lengths_of(Part.LEARN)
    optimiser = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    batches = [batch for epoch in range(epochs) for batch in _batches(lengths, epoch)]
    rate = LEARNING_RATE / 3 if isinstance(head, BlockHead) else LEARNING_RATE  # its weights are trained ones already
    for step, batch in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (0.02 + 0.98 * (1 + math.cos(math.pi * step / len(batches))) / 2)
        rows = torch.cat([torch.arange(first, first + count) for first, count in batch])
        state = head.answers(lessons.hidden[rows], [count for _, count in batch])
        loss = Imitation.apply(state, head.rows, lessons.likely[rows], lessons.probabilities[rows])  # type: ignore[no-untyped-call]
        optimiser.zero_grad()
        (loss / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()


def _batches(lengths: tuple[int, ...], seed: int) -> Iterator[list[tuple[int, int]]]:
    """(first row, rows) of the answers of each step."""
    firsts = torch.tensor((0, *lengths)).cumsum(0).tolist()
    batch: list[tuple[int, int]] = []
    for place in torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist():
        batch.append((firsts[place], lengths[place]))
        if sum(count for _, count in batch) >= ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


@torch.no_grad()
def _judge(head: LearnableHead, states: States, place: int, kept: Tensor) -> tuple[float, float]:
    """Agreement of the held-out rows with the full model, and the share that may leave at LEVEL."""
    rows, lengths = states.rows_of(Part.HELD_OUT), list(states.lengths_of(Part.HELD_OUT))
    state, best = head.answers(states.hidden[place][rows], lengths), states.best[rows].long()
    confidence, right = [], []
    for part, wanted in zip(state.split(ROWS), best.split(ROWS), strict=True):
        chance, said = (part @ head.rows.T).float().softmax(-1).max(-1)
        known = said < len(kept)
        confidence.append(chance.masked_fill(~known, 0.0))
        right.append(known & (kept[said.clamp_max(len(kept) - 1)] == wanted))
    sure, yes = torch.cat(confidence), torch.cat(right)
    order = sure.argsort(descending=True)
    wrong = (~yes[order]).cumsum(0) / len(yes)
    return float(yes.float().mean()), float((wrong <= LEVEL).sum()) / len(yes)


def _time(head: LearnableHead, layer: int, parts: Parts, kept: Tensor) -> float:
    """Median milliseconds of one row's exit in the kernels, between passes of the target that drive its weights out of the caches; a block
    costs what the target's next layer does, and the head of a map besides."""
    runner = load_runner(parts.target, parts.kernels / LIBRARY, max_seq_len=128)
    runner.allocate_cache(8, 16)
    rows, _ = ragged([(0, 0, [1])], block_tables([[0]]))
    with tempfile.TemporaryDirectory() as folder:
        head.write(Path(folder) / "head", runner.config, kept, "comparison")
        packed = load_exit_head(Path(folder) / "head", parts.kernels / LIBRARY, threads=None, cpus=(), instruction_set="auto")
    times = []
    for _ in range(TIMED):
        state = runner.layers(runner.embed(rows), rows, 0, layer)
        began = time.perf_counter()
        if isinstance(head, BlockHead):
            runner.layers(state, rows, layer, layer + 1)
        packed.runner.judge(state, len(kept) + 1)
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| layer | head | agreement before | after | may leave at 2 % | ms an exit |", "|---|---|---|---|---|---|"]
    for row in rows:
        shares = f"{row.before:.1%} | {row.agreement:.1%} | {row.leaving:.1%}"
        lines.append(f"| {row.layer} | {row.kind} | {shares} | {row.milliseconds:.2f} |")
    return "\n".join(lines)
