"""`mode: draft`: which exit drafts best, and how sure its head must be, by the weights that a round reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.compile.torch_aot.folder import read_layout
from builder.decoding.exits.costs import Costs
from builder.decoding.exits.drafting import best, play
from builder.exits.passages import Part
from builder.exits.scores import Scores

MEASURE = "probability"  # the kernels find it as they go
WEIGHTS = "weights.safetensors"
_IDLE = ("embed", "vocabulary")  # tensors that a pass looks single rows up in


@dataclass(frozen=True)
class DraftExit:
    """One layer. The threshold is what wins most on CHOOSE; the counts and the speed-up over plain decoding are those of the held-out
    answers, by weights read."""

    layer: int
    threshold: float
    drafted: int
    kept: int
    predicted_speedup: float


def read_costs(target: Path, heads: Path, layers: Sequence[int]) -> list[Costs]:
    """Of the engine in `target` and the heads in folders named by layer, by the bytes that a pass reads."""
    sizes = {name: stored.bytes for name, stored in read_layout(target / WEIGHTS).items() if name not in _IDLE}
    total = sum(sizes.values())
    below = [sum(size for name, size in sizes.items() if _layer(name) < layer) for layer in layers]
    head = [
        sum(stored.bytes for name, stored in read_layout(heads / str(layer) / WEIGHTS).items() if name not in _IDLE) for layer in layers
    ]
    return [Costs(layers=part / total, head=own / total) for part, own in zip(below, head, strict=True)]


def choose_draft(scores: Scores, layers: Sequence[int], costs: Sequence[Costs]) -> dict[str, Any]:
    """The `draft` of calibration.json: the exit that drafts best on CHOOSE, and all of them."""
    learned, held_out = scores.answers(MEASURE, Part.CHOOSE), scores.answers(MEASURE, Part.HELD_OUT)
    wins = [best(learned, place, cost) for place, cost in enumerate(costs)]
    found = []
    for place, (layer, cost, won) in enumerate(zip(layers, costs, wins, strict=True)):
        seen = play(held_out, place, won.threshold, cost)
        found.append(DraftExit(layer, won.threshold, seen.drafted, seen.kept, round(seen.speedup, 4)))
    chosen = found[max(range(len(wins)), key=lambda place: wins[place].speedup)]
    return {**asdict(chosen), "layers": [asdict(exit_) for exit_ in found]}


def _layer(name: str) -> float:
    """layers.7.down.weight -> 7; anything else lies above all layers."""
    first, *rest = name.split(".")
    return int(rest[0]) if first == "layers" else float("inf")
