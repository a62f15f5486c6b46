"""Every compatibility rule. Each looks at one thing, has a stable id, and says how to mend what it refuses."""

from __future__ import annotations

from collections.abc import Callable

from builder.plan import draft_device, draft_rules, engine_rules, exit_rules
from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.plan.trtllm import common_rules, llmapi_rules
from builder.plan.trtllm import engine_rules as trt_engine_rules
from builder.plan.trtllm import exit_rules as trt_exit_rules
from builder.spec.engine import Backend

Rule = Callable[[PlanContext], Finding]

RULES: tuple[Rule, ...] = (
    draft_rules.vocab_match,
    draft_rules.tokenizer_match,
    draft_rules.draft_layers_valid,
    draft_rules.draft_vocabulary_valid,
    draft_rules.group_size_divides,
    draft_rules.draft_is_cheaper,
    draft_device.device_available,
    draft_device.draft_device_available,
    engine_rules.context_within_model,
    engine_rules.sliding_window,
    engine_rules.kv_holds_one_sequence,
    engine_rules.verify_fits_one_pass,
    engine_rules.memory_fits,
    engine_rules.instruction_set_available,
    engine_rules.threads_within_cores,
    exit_rules.exit_layers_valid,
    exit_rules.exit_calibrated,
    exit_rules.exit_without_speculation,
    exit_rules.exits_run_on_device,
)

_ANY_GPU: tuple[Rule, ...] = (
    draft_rules.vocab_match,
    draft_rules.tokenizer_match,
    draft_rules.draft_layers_valid,
    draft_rules.group_size_divides,
    draft_rules.draft_is_cheaper,
    draft_device.draft_device_available,
    engine_rules.context_within_model,
    engine_rules.sliding_window,
    engine_rules.kv_holds_one_sequence,
    engine_rules.verify_fits_one_pass,
    engine_rules.memory_fits,
    common_rules.version_supported,
    common_rules.proposer_supported,
    common_rules.settings_supported,
    common_rules.dtype_supported,
    common_rules.engine_runs_on_this_gpu,
    common_rules.awq_group_supported,
    common_rules.awq_group_within_gpu,
    common_rules.tensor_parallel_divides_heads,
    common_rules.world_size_fits,
    common_rules.draft_on_the_target_s_node,
    common_rules.speculation_pays,
)

TRT_ENGINE_RULES: tuple[Rule, ...] = (
    *_ANY_GPU,
    trt_engine_rules.engine_names_of_version,
    trt_engine_rules.draft_tokens_within_engine,
    trt_engine_rules.streams_and_batches,
    trt_engine_rules.vocabulary_padded_alike,
    trt_engine_rules.draft_logits_gathered,
    trt_engine_rules.no_context_logits,
    trt_engine_rules.reuse_has_paged_context,
    trt_engine_rules.drafts_reuse_kv,
    trt_engine_rules.same_limits,
    trt_engine_rules.logits_dtype_agrees,
    trt_engine_rules.placeholders_filled,
    trt_engine_rules.pools_share_the_gpu,
    trt_engine_rules.kv_counts_both_models,
    trt_exit_rules.exit_is_the_draft,
    trt_exit_rules.exit_logits_gathered,
    trt_exit_rules.exit_calibrated_on_engines,
)

LLMAPI_RULES: tuple[Rule, ...] = (
    *_ANY_GPU,
    llmapi_rules.argument_names_of_version,
    llmapi_rules.draft_room_in_arguments,
    llmapi_rules.schedule_allowed,
    llmapi_rules.two_models_do_not_overlap,
    llmapi_rules.reuse_pool_shares_gpu,
    trt_exit_rules.exit_supported,
)

_BY_BACKEND: dict[Backend, tuple[Rule, ...]] = {"torch_aot": RULES, "trtllm-engine": TRT_ENGINE_RULES, "trtllm-llmapi": LLMAPI_RULES}


def rules_for(context: PlanContext) -> tuple[Rule, ...]:
    """The rules of the backend that will run."""
    return _BY_BACKEND[context.spec.engine.chosen_backend]
