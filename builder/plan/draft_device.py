"""Where target and draft can run: what each backend and this machine can do, and the rules over engine.device and draft.device."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.spec.engine import Device, Engine

DEVICES: tuple[Device, ...] = ("cpu", "cuda")
NO_GPU = "this machine's torch sees no CUDA GPU"
_GET_GPU = "on a GPU host with a CUDA build of torch"
_DEVICE, _DRAFT_DEVICE = "device-available", "draft-device-available"


def target_device(engine: Engine) -> Device:
    return engine.device if engine.chosen_backend == "torch_aot" else "cuda"


def obstacle(engine: Engine, device: Device) -> str | None:
    """Why the backend cannot run a draft on this device; None where it can."""
    if engine.chosen_backend == "torch_aot" or device == "cuda":
        return None
    return "TensorRT-LLM runs both models on the GPU: a draft on the CPU would send its tokens over the bus each step"


def device_available(context: PlanContext) -> Finding:
    """engine.device cuda is planned on the host that serves: the memory is that GPU's."""
    if context.spec.engine.device == "cpu":
        return Finding(_DEVICE, True, "cpu")
    if context.host.gpu_memory is None:
        return Finding(_DEVICE, False, f"engine.device is cuda, and {NO_GPU}", f"Plan and build {_GET_GPU}, or set engine.device to cpu")
    return Finding(_DEVICE, True, "cuda")


def draft_device_available(context: PlanContext) -> Finding:
    """A draft elsewhere than its target needs an engine that can run there (M16)."""
    engine, draft = context.spec.engine, context.spec.used_draft
    if draft is None:
        return Finding(_DRAFT_DEVICE, True, "no draft")
    target = target_device(engine)
    device = target if draft.device == "same" else draft.device
    if device == target:
        return Finding(_DRAFT_DEVICE, True, f"the draft runs on {device}, as the target does")
    reason = obstacle(engine, device)
    if reason is None and device == "cuda" and context.host.gpu_memory is None:
        reason = NO_GPU
    if reason is None:
        return Finding(_DRAFT_DEVICE, True, f"the draft runs on {device}, the target on {target}: each has a KV cache of its own")
    mend = f"Set draft.device to same or {target}"
    if device == "cuda":
        mend += f", or plan and build {_GET_GPU}"
    return Finding(_DRAFT_DEVICE, False, f"draft.device is {device}, and {reason}", mend)
