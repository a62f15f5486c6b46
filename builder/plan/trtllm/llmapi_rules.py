"""Rules of trtllm-llmapi, over the arguments of LLM() as they will be written to model.yaml."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.plan.gpu_memory import has_plain_instance
from builder.plan.trtllm.arguments import CACHE, SPECULATIVE, Arguments, llm_arguments
from builder.plan.trtllm.names import unknown_arguments
from builder.plan.trtllm.versions import LLMAPI_LINES, line_of

_FOLDERS = {"target": "target", "draft": "draft"}  # the names of folders change nothing here


def argument_names_of_version(context: PlanContext) -> Finding:
    """model.yaml is strict: a name of another version is fatal when the server starts."""
    rule, version = "names-of-version", context.spec.engine.trt.version
    line, arguments = LLMAPI_LINES.get(line_of(version)), _arguments(context)
    if line is None:
        return Finding(rule, True, f"no table of names for {version}, see trtllm-version-supported")
    wrong = list(unknown_arguments(arguments, line))
    if not wrong:
        return Finding(rule, True, f"every name is one of {line_of(version)}")
    return Finding(
        rule, False, f"TensorRT-LLM {version} does not know {'; '.join(wrong)}", "Use the version's names, or change the version"
    )


def draft_room_in_arguments(context: PlanContext) -> Finding:
    """The drafts that the pipeline asks for are those that the model is loaded for."""
    rule, speculative = "draft-tokens-within-engine", _arguments(context).get(SPECULATIVE, {})
    room = speculative.get("max_draft_len", 0)
    if room == context.draft_tokens or not speculative:
        return Finding(rule, True, f"drafts of {room}")
    message = f"speculative_config has max_draft_len {room}, speculation.max_draft_tokens is {context.draft_tokens}"
    return Finding(rule, False, message, "Leave max_draft_len out of engine.tensorrt_llm.arguments")


def reuse_pool_shares_gpu(context: PlanContext) -> Finding:
    """A second instance on the same GPUs cannot have nine tenths of the memory that the first has taken."""
    rule, cache = "kv-pools-share-gpu", _arguments(context).get(CACHE, {})
    fraction = cache.get("free_gpu_memory_fraction")
    if fraction is None or not has_plain_instance(context) or (isinstance(fraction, int | float) and fraction <= 0.5):
        return Finding(rule, True, "pools are sized in tokens" if fraction is None else f"a fraction of {fraction}")
    mend = "Leave kv_cache_config__free_gpu_memory_fraction out: builder sizes the pools in tokens; or set plain_instance to false"
    return Finding(rule, False, f"two instances share the GPUs, each with {fraction} of the free memory", mend)


def schedule_allowed(context: PlanContext) -> Finding:
    """draft_len_schedule and max_concurrency are two ways to say one thing, and exclude each other."""
    rule, speculative = "draft-schedule-alone", _arguments(context).get(SPECULATIVE, {})
    if {"draft_len_schedule", "max_concurrency"} <= set(speculative):
        mend = "Keep one of them in engine.tensorrt_llm.arguments"
        return Finding(rule, False, "speculative_config has both draft_len_schedule and max_concurrency", mend)
    return Finding(rule, True, "no two limits of drafts by load")


def two_models_do_not_overlap(context: PlanContext) -> Finding:
    """Where draft and target are two models, the overlap scheduler would start a step before its drafts are judged."""
    rule, arguments = "overlap-scheduler", _arguments(context)
    line = LLMAPI_LINES.get(line_of(context.spec.engine.trt.version))
    two = line is not None and line.two_models and arguments.get(SPECULATIVE, {}).get("decoding_type") == line.draft_target
    if not two or arguments.get("disable_overlap_scheduler") is True:
        return Finding(rule, True, "off" if two else "no two models to interleave")
    mend = "Remove disable_overlap_scheduler from engine.tensorrt_llm.arguments"
    return Finding(rule, False, "the overlap scheduler is on with a draft model", mend)


def _arguments(context: PlanContext) -> Arguments:
    return llm_arguments(context, _FOLDERS) or {}
