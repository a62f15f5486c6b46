"""`builder bench --placement`: what a pipeline's draft comes to on each device that this machine and the engine have (M16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from builder.bench import speculation
from builder.bench.calibration import Costs, median_costs
from builder.bench.lab import Lab, Setting
from builder.bench.prompts import Prompt
from builder.bench.report import Machine
from builder.bench.speculation import median_speedup
from builder.bench.spread import Spread
from builder.bench.tables import Table, spread
from builder.errors import SpecError
from builder.plan.draft_device import DEVICES, NO_GPU, obstacle, target_device
from builder.plan.host import gpu_memory
from builder.repository.models.folder import read_spec
from builder.repository.versions import Version
from builder.spec.engine import Device, Engine
from builder.spec.pipeline import PipelineSpec


@dataclass(frozen=True)
class Measured:
    """The pipeline's own K and its draft model alone as the proposer, at one stream, greedy."""

    setting: Setting
    plain: Spread  # tokens per second
    speculative: Spread  # tokens per second
    speedup: float  # median over facts and code
    acceptance_length: float
    costs: Costs
    identity: float  # share of answers with the tokens of plain decoding

    def to_json(self) -> dict[str, Any]:
        return {
            "k": self.setting.draft_tokens,
            "plain_tok_s": self.plain.to_json(),
            "tok_s": self.speculative.to_json(),
            "speedup": self.speedup,
            "acceptance_length": self.acceptance_length,
            "step_times": self.costs.to_json(),
            "identity": self.identity,
        }


@dataclass(frozen=True)
class Placement:
    """Of the draft; the target stays where it is. `reason` says why there is nothing measured."""

    device: Device
    measured: Measured | None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        found = self.measured.to_json() if self.measured else None
        return {"device": self.device, "available": self.measured is not None, "reason": self.reason, "measured": found}


@dataclass(frozen=True)
class PlacementReport:
    pipeline: str
    version: int
    target: Device
    configured: str  # draft.device
    machine: Machine
    placements: tuple[Placement, ...]
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def recommended(self) -> Device | None:
        """The fastest of those measured; None when drafts pay on none of them."""
        paying = {found.device: found.measured.speedup for found in self.placements if found.measured and found.measured.speedup > 1}
        return max(paying, key=paying.__getitem__, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "target_device": self.target,
            "configured": self.configured,
            "recommended": self.recommended,
            "placements": [placement.to_json() for placement in self.placements],
            "machine": asdict(self.machine),
            "created": self.created,
        }

    def table(self) -> Table:
        rows = [(found.device, *_cells(found)) for found in self.placements]
        columns = ("draft on", "plain tokens/s", "tokens/s", "speed-up", "length", "draft step ms", "verify ms")
        missing = "; ".join(f"{found.device}: not measured, {found.reason}" for found in self.placements if found.reason)
        return Table("Placement of the draft", columns, tuple(rows), note=f"Target on {self.target}. {missing}")


def measure_placements(version: Version, prompts: Sequence[Prompt], tokens: int, say: Callable[[str], None]) -> PlacementReport:
    """SpecError for a version without a draft model; EngineError when it cannot run here."""
    spec = read_spec(version.decode_folder)
    draft = spec.used_draft
    if draft is None:
        raise SpecError("this pipeline has no draft model to place", where="draft", mend="Give it one, and proposer draft_model or hybrid")
    setting = Setting(spec.speculation.max_draft_tokens, "draft_model")
    placements, set_of_target = [], ""
    for device in DEVICES:
        reason = unavailable(spec.engine, device)
        say(f"draft on {device}: {reason or 'loading the engines'}")
        if reason is None:  # one pair of engines after the other: the caches of two may not fit
            lab = Lab.open(version.decode_folder, _with_draft_on(spec, device))
            set_of_target = lab.parts.target.instruction_set
            placements.append(Placement(device, _measure(lab, setting, prompts, tokens, say)))
        else:
            placements.append(Placement(device, None, reason))
    machine = Machine.of(set_of_target, spec.engine.threads)
    return PlacementReport(version.pipeline, version.number, target_device(spec.engine), draft.device, machine, tuple(placements))


def unavailable(engine: Engine, device: Device) -> str | None:
    """Why a draft cannot be measured there, by engine and by machine; None where it can."""
    reasons = [obstacle(engine, device)]
    if device == "cuda" and gpu_memory() is None:
        reasons.append(NO_GPU)
    return ", and ".join(reason for reason in reasons if reason) or None


def _with_draft_on(spec: PipelineSpec, device: Device) -> PipelineSpec:
    draft = spec.draft and spec.draft.model_copy(update={"device": device})
    return spec.model_copy(update={"draft": draft})


def _measure(lab: Lab, setting: Setting, prompts: Sequence[Prompt], tokens: int, say: Callable[[str], None]) -> Measured:
    samples = speculation.measure(lab, prompts, [setting.method], [setting.draft_tokens], tokens, say)
    rounds = [step for sample in samples.speculative for step in sample.answer.timed_steps if step.drafted]
    return Measured(
        setting,
        Spread.of(answer.tokens_per_second for _, answer in samples.plain),
        Spread.of(sample.answer.tokens_per_second for sample in samples.speculative),
        median_speedup(samples.speculative, setting) or 0.0,
        1.0 + sum(step.accepted for step in rounds) / max(1, len(rounds)),
        median_costs(samples.costs[setting.draft_tokens]),
        samples.identity.fraction,
    )


def _cells(placement: Placement) -> tuple[str, ...]:
    found = placement.measured
    if found is None:
        return ("-",) * 6
    times = (found.costs.times.draft, found.costs.times.verify)
    speeds = (spread(found.plain), spread(found.speculative), f"{found.speedup:.2f}x", f"{found.acceptance_length:.2f}")
    return (*speeds, *(f"{seconds * 1e3:.2f}" for seconds in times))
