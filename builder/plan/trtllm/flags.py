"""Flags of trtllm-build for each of the two engines (trtllm-engine)."""

from __future__ import annotations

from typing import Literal

from builder.plan.context import PlanContext
from builder.spec.tensorrt_llm import Setting

Role = Literal["target", "draft"]
DRAFT_TOKENS_EXTERNAL = "draft_tokens_external"
SWITCHES = ("gather_context_logits", "gather_generation_logits", "multiple_profiles")  # flags without a value


def roles(context: PlanContext) -> tuple[Role, ...]:
    """The models that are built."""
    return ("target",) if context.draft is None else ("target", "draft")


def build_flags(context: PlanContext, role: Role) -> dict[str, Setting]:
    """Name -> value, as trtllm-build takes them without the dashes; folders are not among them.

    The limits are the same for both engines: the draft must hold every sequence that the target does. What
    engine.tensorrt_llm.<role>.flags says comes last and wins, so the rules look at what will really be passed.
    """
    engine, trt = context.spec.engine, context.spec.engine.trt
    flags: dict[str, Setting] = {
        "max_batch_size": engine.max_batch_size,
        "max_input_len": engine.max_seq_len - 1,
        "max_seq_len": engine.max_seq_len,
        "max_num_tokens": engine.max_num_tokens,
        "max_beam_width": 1,
        "kv_cache_type": "paged",
        "gemm_plugin": "auto",
        "use_paged_context_fmha": "enable",  # KV reuse and verification of drafts both need it
        "logits_dtype": trt.logits_dtype,
        "workers": trt.model(role).world_size,
    }
    if context.draft is not None and role == "target":
        flags |= {"speculative_decoding_mode": DRAFT_TOKENS_EXTERNAL, "max_draft_len": context.draft_tokens}
    exits = context.spec.early_exit.mode == "answer" and role == "draft"
    if context.draft is not None and (trt.draft_logits or exits):
        flags["gather_generation_logits"] = True
    return flags | trt.model(role).flags


def as_arguments(flags: dict[str, Setting]) -> list[str]:
    """The command line's form: `--name value`; a switch is there or not."""
    words: list[str] = []
    for name, value in flags.items():
        if name in SWITCHES:
            words += [f"--{name}"] if enabled(value) else []
        else:
            words += [f"--{name}", {True: "enable", False: "disable"}[value] if isinstance(value, bool) else str(value)]
    return words


def enabled(value: Setting | None) -> bool:
    """Both spellings of on."""
    return value is True or value == "enable"
