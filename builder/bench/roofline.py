"""What one decode step must read and compute, and how near it comes to reading the weights and nothing else (M1)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from builder.bench.lab import Lab
from builder.bench.passes import rows_at, run_pass
from builder.compile.torch_aot.engine import matrix_sizes
from builder.repository.engine import DRAFT, TARGET
from builder.runtime.runners.loaded import LoadedRunner

REPEATS = 20


@dataclass(frozen=True)
class Roofline:
    """One model at one stream: bytes and floating-point (or integer) operations of a step, and two times in seconds.

    `limit` streams every matrix once with dummy rows: the arithmetic of the step without attention, norms or sampling.
    """

    weight_bytes: int  # all matrices, the head included, as packed
    kv_bytes: int  # keys and values read at `context`
    operations: int
    context: int  # position of the measured token
    step: float
    limit: float

    @property
    def bytes_per_step(self) -> int:
        return self.weight_bytes + self.kv_bytes

    @property
    def bandwidth(self) -> float:
        """Bytes per second that the step reads."""
        return self.bytes_per_step / self.step

    @property
    def limit_bandwidth(self) -> float:
        return self.weight_bytes / self.limit

    @property
    def limit_share(self) -> float:
        return self.limit / self.step

    def to_json(self) -> dict[str, Any]:
        return {
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "flops": self.operations,
            "context": self.context,
            "step_ms": self.step * 1e3,
            "limit_ms": self.limit * 1e3,
            "bandwidth_gb_s": self.bandwidth / 1e9,
            "limit_bandwidth_gb_s": self.limit_bandwidth / 1e9,
            "limit_share": self.limit_share,
            "operations_per_byte": self.operations / self.bytes_per_step,
        }


def measure_rooflines(lab: Lab, folder: Path, context: int, repeats: int = REPEATS) -> dict[str, Roofline]:
    """For "target" and, if there is one, "draft"; `folder` is the version the lab was opened on.

    Steps and limits of both alternate, and each is a median, so that a change of the machine's speed hits all alike.
    """
    runners = {TARGET: lab.parts.target} | ({DRAFT: lab.parts.draft} if lab.parts.draft is not None else {})
    settings = lab.parts.settings
    rows = rows_at(min(context, settings.max_seq_len - 1), 1, settings.num_blocks)
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name, runner in runners.items():
        calls[name, "step"] = lambda runner=runner: run_pass(runner, rows)  # type: ignore[misc]
        calls[name, "limit"] = lambda runner=runner: runner.products(1)  # type: ignore[misc]
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(repeats):
        for key, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[key].append(time.perf_counter() - began)
    times = {key: statistics.median(taken) for key, taken in seconds.items()}
    return {name: _roofline(runner, folder / name, context, times[name, "step"], times[name, "limit"]) for name, runner in runners.items()}


def _roofline(runner: LoadedRunner, folder: Path, context: int, step: float, limit: float) -> Roofline:
    config = runner.config
    products = sum(outputs * inputs for outputs, inputs in matrix_sizes(replace(config, vocab_size=runner.info.scored)).values())
    attention = config.num_layers * config.num_heads * config.head_dim * (context + 1)
    return Roofline(
        weight_bytes=packed_bytes(folder / "weights.safetensors"),
        kv_bytes=(context + 1) * runner.cache_bytes_per_block(1),
        operations=2 * products + 4 * attention,  # a multiplication and an addition each; attention has q·k and weights·v
        context=context,
        step=step,
        limit=limit,
    )


def packed_bytes(weights: Path) -> int:
    """Bytes of the matrices a step streams. The embedding is a lookup of one row; norms and biases are not matrices."""
    total = 0
    with safe_open(weights, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            if name.endswith((".weight", ".scale", ".minimum")):
                tensor = file.get_tensor(name)  # mapped, not read
                total += tensor.numel() * tensor.element_size()
    return total
