"""Arguments of tensorrt_llm.LLM by version: the content of model.yaml (trtllm-llmapi)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.plan.context import PlanContext
from builder.plan.memory import kv_blocks
from builder.plan.trtllm.versions import LLMAPI_LINES, LlmApiLine, line_of

Arguments = dict[str, Any]
SPECULATIVE, CACHE = "speculative_config", "kv_cache_config"
LONGEST_NGRAM = 3  # tokens of the text looked up by prompt lookup


def llm_arguments(context: PlanContext, models: Mapping[str, str]) -> Arguments | None:
    """Arguments of LLM() with the pipeline's proposer; `models` are the folders of target and draft.

    None where the version has no table: the rule about versions then says so. What engine.tensorrt_llm.arguments says
    comes last and wins.
    """
    line = LLMAPI_LINES.get(line_of(context.spec.engine.trt.version))
    if line is None:
        return None
    arguments = plain_arguments(context, models)
    speculative = _speculative(context, line, models)
    if speculative is not None:
        arguments[SPECULATIVE] = speculative
        if line.two_models and speculative["decoding_type"] == line.draft_target:
            arguments["disable_overlap_scheduler"] = True
    for name, value in context.spec.engine.trt.arguments.items():
        section, _, key = name.rpartition("__")
        if section:
            arguments.setdefault(section, {})[key] = value
        else:
            arguments[name] = value
    return arguments


def plain_arguments(context: PlanContext, models: Mapping[str, str]) -> Arguments:
    """The same without speculation: what the plain instance is made with."""
    engine = context.spec.engine
    return {
        "model": models["target"],
        "dtype": context.spec.target.dtype,
        "tensor_parallel_size": engine.trt.target.tensor_parallel,
        "pipeline_parallel_size": engine.trt.target.pipeline_parallel,
        "max_batch_size": engine.max_batch_size,
        "max_seq_len": engine.max_seq_len,
        "max_num_tokens": engine.max_num_tokens,
        "enable_chunked_prefill": True,
        CACHE: {
            "enable_block_reuse": engine.kv_cache.prefix_caching,
            "tokens_per_block": engine.kv_cache.block_size,
            "max_tokens": kv_blocks(context) * engine.kv_cache.block_size,
        },
    }


def _speculative(context: PlanContext, line: LlmApiLine, models: Mapping[str, str]) -> Arguments | None:
    proposer, drafted = context.spec.speculation.proposer, context.draft_tokens
    if proposer == "ngram":
        return {"decoding_type": "NGram", "max_draft_len": drafted, "max_matching_ngram_size": LONGEST_NGRAM}
    if context.draft is None:
        return None
    return {"decoding_type": line.draft_target, "max_draft_len": drafted, "speculative_model": models["draft"]}
