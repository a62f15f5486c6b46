"""A plan: what the rules found, the memory it takes, and what speculation is predicted to give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from builder.errors import CheckError
from builder.plan.context import PlanContext
from builder.plan.cost import StepTimes, break_even, byte_bound_times
from builder.plan.devices import DEVICES
from builder.plan.finding import Finding
from builder.plan.forecast import Forecast, measured_forecast, roofline_forecast, stated_times
from builder.plan.headroom import Headroom, headroom
from builder.plan.memory import MemoryFit, draft_read_bytes, memory_fit, target_read_bytes
from builder.plan.rules import rules_for
from builder.spec.gpu import GpuName


@dataclass(frozen=True)
class Measured:
    """Acceptance rate (0..1) on the user's own traffic, and step times in seconds."""

    acceptance: float
    times: StepTimes


@dataclass(frozen=True)
class Plan:
    """`byte_bound_break_even` is the acceptance below which speculation cannot pay, were reading weights the only cost;
    None without a draft model or when it never pays. `predicted` is made of measured times where there are any, else it is
    the `roofline`, which only a GPU has. `devices` are the other kinds of GPU, and what fits on each."""

    name: str
    findings: tuple[Finding, ...]
    memory: MemoryFit
    byte_bound_break_even: float | None
    largest: Headroom | None  # None: nobody knows the memory
    predicted: Forecast | None = None
    roofline: Forecast | None = None
    devices: Mapping[GpuName, Headroom] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def require(self) -> None:
        """Raise CheckError that lists every rule that said no."""
        refused = [finding for finding in self.findings if not finding.ok]
        if not refused:
            return
        lines = [f"{finding.id}: {finding.message}. {finding.mend}" for finding in refused]
        what = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} checks failed", *lines])
        raise CheckError(what, where=self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "memory": self.memory.to_json(),
            "byte_bound_break_even": self.byte_bound_break_even,
            "largest": self.largest.to_json() if self.largest else None,
            "predicted": self.predicted.to_json() if self.predicted else None,
            "roofline": self.roofline.to_json() if self.roofline else None,
            "devices": {name: room.to_json() for name, room in self.devices.items()},
        }


def check(context: PlanContext, measured: Measured | None = None) -> Plan:
    """Run every rule. Reads nothing but the context, so tests and `make_plan` share it. `measured` goes before what the spec states."""
    draft_tokens = context.spec.speculation.max_draft_tokens
    draft = draft_read_bytes(context)
    measured = measured or _stated(context)
    roofline = roofline_forecast(context, measured.acceptance if measured else _acceptance(context))
    memory = memory_fit(context)
    return Plan(
        name=context.spec.metadata.name,
        findings=tuple(rule(context) for rule in rules_for(context)),
        memory=memory,
        byte_bound_break_even=break_even(byte_bound_times(target_read_bytes(context), draft), draft_tokens) if draft else None,
        largest=None if memory.capacity is None else headroom(context),
        predicted=measured_forecast(measured.times, measured.acceptance, draft_tokens) if measured else roofline,
        roofline=roofline,
        devices=_other_devices(context),
    )


def _stated(context: PlanContext) -> Measured | None:
    stated = context.spec.speculation.measured
    times = stated_times(stated)
    return None if stated is None or times is None else Measured(stated.acceptance, times)


def _acceptance(context: PlanContext) -> float | None:
    stated = context.spec.speculation.measured
    return None if stated is None else stated.acceptance


def _other_devices(context: PlanContext) -> dict[GpuName, Headroom]:
    """The same on each kind of GPU, split as here."""
    gpu, engine = context.spec.engine.gpu, context.spec.engine
    if engine.device == "cuda":
        return {name: headroom(replace(context, host=replace(context.host, gpu_memory=device.memory))) for name, device in DEVICES.items()}
    if gpu is None:
        return {}
    rooms: dict[GpuName, Headroom] = {}
    for name in DEVICES:
        other = engine.model_copy(update={"gpu": gpu.model_copy(update={"name": name})})
        rooms[name] = headroom(replace(context, spec=context.spec.model_copy(update={"engine": other})))
    return rooms
