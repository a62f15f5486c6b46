"""Where a draft can run: what each backend can do with it, and the rule over draft.device."""

from __future__ import annotations

from typing import Literal

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.spec.engine import Engine

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
ID = "draft-device-available"


def target_device(engine: Engine) -> Device:
    return "cpu" if engine.chosen_backend == "torch_aot" else "cuda"


def obstacle(engine: Engine, device: Device) -> str | None:
    """Why the backend cannot run a draft on this device; None where it can."""
    if device == target_device(engine):
        return None
    if device == "cuda":
        return "the kernels of torch_aot are compiled for the CPU only"
    return "TensorRT-LLM runs both models on the GPU: a draft on the CPU would send its tokens over the bus each step"


def draft_device_available(context: PlanContext) -> Finding:
    """A draft elsewhere than its target needs an engine that can run there (M16)."""
    engine, draft = context.spec.engine, context.spec.used_draft
    if draft is None:
        return Finding(ID, True, "no draft")
    device = target_device(engine) if draft.device == "same" else draft.device
    reason = obstacle(engine, device)
    if reason is None:
        return Finding(ID, True, f"the draft runs on {device}, as the target does")
    mend = f"Set draft.device to same or {target_device(engine)}"
    if device == "cuda":
        mend += ", or choose a trtllm backend with engine.gpu"
    return Finding(ID, False, f"draft.device is {device}, and {reason}", mend)
