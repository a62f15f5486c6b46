"""Rules about early exit: are its layers the model's, is it calibrated for exactly this, does it go with the rest?"""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.plan.wording import listed

OFF = "off"


def exit_layers_valid(context: PlanContext) -> Finding:
    exits, have = context.spec.early_exit, context.target.num_layers
    if exits.mode == "none":
        return Finding("exit-layers-valid", True, OFF)
    layers = exits.exit_layers(have)
    if layers[-1] < have:
        return Finding("exit-layers-valid", True, f"after {listed(layers)} of {have} layers")
    return Finding("exit-layers-valid", False, f"early_exit.layers has {layers[-1]}, the model {have} layers", f"Use layers below {have}")


def exit_calibrated(context: PlanContext) -> Finding:
    """An exit without a calibration for these weights is a guess about quality (M6, M12)."""
    if context.exits is None:
        return Finding("exit-calibrated", True, OFF)
    record = context.exits.record
    command = f"Run `{context.exits.calibrate}`, or set early_exit.mode to none"
    if record is None:
        return Finding("exit-calibrated", False, "early exit was never calibrated for this pipeline", command)
    if stale := context.exits.stale:
        return Finding("exit-calibrated", False, f"the calibration is stale: {listed(stale)} changed since", command)
    if context.spec.early_exit.mode == "draft":
        return Finding("exit-calibrated", True, "every token is verified: drafts change none")
    if not record.bounded:
        return Finding("exit-calibrated", False, record.guarantee, "Set early_exit.mode to none, or allow more in quality.max_disagreement")
    return Finding("exit-calibrated", True, record.guarantee)


def exit_without_speculation(context: PlanContext) -> Finding:
    """Two approximations on top of each other are more than either was calibrated for (M12), and a draft needs every key and value."""
    rule, spec = "exit-without-speculation", context.spec
    if spec.early_exit.mode != "answer" or spec.speculation.proposer == "none":
        return Finding(rule, True, "no speculation" if spec.early_exit.mode == "answer" else OFF)
    message = f"early exit beside speculation.proposer {spec.speculation.proposer}"
    if context.draft is not None:
        message += ": a calibration is made without the INT4 draft, and says nothing of the two together"
    return Finding(rule, False, message, "Set speculation.proposer to none, or early_exit.mode to none")


def exits_run_on_device(context: PlanContext) -> Finding:
    """The exit heads are engines of the compiled kernels, which run on the CPU only."""
    if context.spec.early_exit.mode == "none":
        return Finding("exits-run-on-device", True, OFF)
    if context.spec.engine.device == "cpu":
        return Finding("exits-run-on-device", True, "cpu")
    what = "early exit runs on the CPU only, and engine.device is cuda"
    return Finding("exits-run-on-device", False, what, "Set early_exit.mode to none: the draft of inner layers is draft.layers")
