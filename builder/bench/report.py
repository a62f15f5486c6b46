"""What a bench run found, and its JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.bench.calibration import Costs
from builder.bench.early_exit import ExitResult
from builder.bench.identity import Identity
from builder.bench.lab import Setting
from builder.bench.peers import Peer
from builder.bench.prompts import Prompt
from builder.bench.roofline import Roofline
from builder.bench.speculation import GENERAL, Result, Sample, best_setting, median_speedup
from builder.bench.spread import Spread
from builder.bench.through_triton import TritonResult
from builder.plan.host import this_host
from builder.repository.engine import DRAFT, TARGET


@dataclass(frozen=True)
class Machine:
    processor: str
    cores: int
    instruction_set: str
    threads: int
    load: float  # runnable processes over the last minute when the run began to be written up; ours are among them

    @classmethod
    def of(cls, instruction_set: str, threads: int | None) -> Machine:
        cores = this_host().cores
        return cls(_processor(), cores, instruction_set, threads or cores, os.getloadavg()[0])


@dataclass(frozen=True)
class Report:
    """Speeds are medians with quartiles, in tokens per second at one stream, decode only; times in seconds."""

    pipeline: str
    version: int
    published: Setting
    tokens: int  # of every answer
    prompts: tuple[Prompt, ...]
    machine: Machine
    plain: Spread
    time_to_first_token: Spread
    prompt_tokens: Spread
    samples: tuple[Sample, ...]
    results: tuple[Result, ...]
    best: Setting | None  # of the published proposer, over facts and code
    costs: Mapping[int, Costs]  # by K
    rooflines: Mapping[str, Roofline]  # target, draft
    identity: Identity
    load_seconds: float
    triton: TritonResult | None
    peers: tuple[Peer, ...]
    seconds: float
    early_exit: tuple[ExitResult, ...] = ()  # by class; empty where the version has none
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def headline(self) -> dict[str, tuple[Setting, float]]:
        """By method: its best setting and that setting's median speed-up over facts and code."""
        found = {}
        for method in dict.fromkeys(sample.setting.method for sample in self.samples):
            setting = best_setting(self.samples, method)
            if setting is not None:
                found[method] = setting, median_speedup(self.samples, setting) or 0.0
        return found

    @property
    def prediction_error(self) -> float:
        """Median of the settings' |predicted / measured - 1|; 0.0 without results."""
        errors = [abs(result.prediction_error) for result in self.results]
        return statistics.median(errors) if errors else 0.0

    def to_json(self) -> dict[str, Any]:
        target = self.rooflines[TARGET]
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "plain_tok_s": self.plain.median,
            "bandwidth_gb_s": target.bandwidth / 1e9,
            "limit_share": target.limit_share,
            "draft_limit_share": self.rooflines[DRAFT].limit_share if DRAFT in self.rooflines else None,
            "triton_share": self.triton.share.median if self.triton else None,
            "identity": self.identity.fraction,
            "recommended_k": self.best.draft_tokens if self.best else None,
            "speculative": [result.to_json() for result in self.results],
            "headline": [self._headline_json(*found) for found in self.headline.values()],
            "early_exit": [result.to_json() for result in self.early_exit],
            "prediction_error_percent": 100 * self.prediction_error,
            "plain_tok_s_spread": self.plain.to_json(),
            "ttft_ms": {name: value * 1e3 for name, value in self.time_to_first_token.to_json().items()},
            "prompt_tokens": self.prompt_tokens.median,
            "step_times": [costs.to_json() for _, costs in sorted(self.costs.items())],
            "bytes_per_step": target.bytes_per_step,
            "flops_per_step": target.operations,
            "roofline": {name: roofline.to_json() for name, roofline in self.rooflines.items()},
            "identity_detail": self.identity.to_json(),
            "load_seconds": self.load_seconds,
            "triton": self.triton.to_json() if self.triton else None,
            "peak_memory_bytes": self.triton.peak_memory if self.triton else None,
            "peers": [peer.to_json() for peer in self.peers],
            "prompts": len(self.prompts),
            "tokens": self.tokens,
            "published": {"method": self.published.method, "k": self.published.draft_tokens},
            "machine": asdict(self.machine),
            "created": self.created,
            "seconds": self.seconds,
        }

    def _headline_json(self, setting: Setting, speedup: float) -> dict[str, Any]:
        measured = {sample.prompt.kind for sample in self.samples}
        return {
            "method": setting.method,
            "k": setting.draft_tokens,
            "speedup": speedup,
            "classes": [kind for kind in GENERAL if kind in measured] or sorted(measured),
        }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
