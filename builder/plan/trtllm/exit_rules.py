"""Rules about early exit on TensorRT-LLM: the only exit there is the draft, where that is the target's own first layers."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.exit_rules import OFF
from builder.plan.finding import Finding
from builder.plan.trtllm.flags import build_flags, enabled
from builder.plan.wording import listed


def exit_supported(context: PlanContext) -> Finding:
    """LLM() decides over drafts itself and shows no logits of them."""
    if context.spec.early_exit.mode == "none":
        return Finding("exit-supported", True, OFF)
    mend = "Set early_exit.mode to none, or engine.backend to trtllm-engine with mode answer"
    return Finding("exit-supported", False, f"trtllm-llmapi has no early exit, and early_exit.mode is {context.spec.early_exit.mode}", mend)


def exit_is_the_draft(context: PlanContext) -> Finding:
    """Inner layers cannot be reached in a compiled engine: they must be an engine of their own, which is the draft."""
    rule, spec, depth = "exit-is-the-draft", context.spec, context.target.num_layers
    if spec.early_exit.mode == "none":
        return Finding(rule, True, OFF)
    cut = f"speculation.proposer to draft_model, draft.weights to same and draft.layers to less than {depth}"
    if spec.early_exit.mode == "draft":
        message = "early_exit.mode draft on trtllm-engine is what a draft of the target's own first layers does"
        return Finding(rule, False, message, f"Set early_exit.mode to none, {cut}")
    draft = spec.used_draft
    if spec.speculation.proposer != "draft_model" or draft is None:
        message = f"with trtllm-engine tokens leave at the draft, and speculation.proposer is {spec.speculation.proposer}"
    elif not draft.from_target:
        message = "with trtllm-engine the exit is a draft of the target's own first layers, and the draft has other weights"
    elif draft.layers == "all" or draft.layers >= depth:
        message = f"with trtllm-engine the exit is a draft of the target's own first layers, and the draft has all {depth}"
    else:
        return Finding(rule, True, f"after the draft's {draft.layers} of {depth} layers")
    return Finding(rule, False, message, f"Set {cut}, or early_exit.mode to none")


def exit_logits_gathered(context: PlanContext) -> Finding:
    """How sure the draft is follows from its logits, which an engine has only where it was built to keep them."""
    rule = "exit-logits-gathered"
    if context.spec.early_exit.mode != "answer" or context.draft is None:
        return Finding(rule, True, OFF)
    if enabled(build_flags(context, "draft").get("gather_generation_logits")):
        return Finding(rule, True, "the draft gathers generation logits")
    mend = "Remove gather_generation_logits from engine.tensorrt_llm.draft.flags, or set early_exit.mode to none"
    return Finding(rule, False, "early exit reads the draft's logits, which its engine does not gather", mend)


def exit_calibrated_on_engines(context: PlanContext) -> Finding:
    """Served engines are calibrated, so they come first: until then nothing leaves. What was calibrated must be what is served (M12)."""
    rule = "exit-calibrated"
    if context.exits is None:
        return Finding(rule, True, OFF)
    record = context.exits.record
    command = f"Run `{context.exits.calibrate}` against the served engines"
    if record is None:
        return Finding(rule, True, f"not calibrated yet: nothing leaves before it is. {command}, then build again")
    if stale := context.exits.stale:
        mend = f"{command}, or remove the record: without one nothing leaves, and the engines can be built and served"
        return Finding(rule, False, f"the calibration is stale: {listed(stale)} changed since", mend)
    if not record.bounded:
        return Finding(rule, False, record.guarantee, "Set early_exit.mode to none, or allow more in quality.max_disagreement")
    return Finding(rule, True, record.guarantee)
