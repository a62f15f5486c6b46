"""Rules of trtllm-engine, over the flags and parameters as they will be passed."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.plan.memory import cache_block_bytes
from builder.plan.parameters import cache_bytes_per_token
from builder.plan.trtllm.backend import INFLIGHT, backend_parameters
from builder.plan.trtllm.flags import DRAFT_TOKENS_EXTERNAL, build_flags, enabled, roles
from builder.plan.trtllm.names import unknown
from builder.plan.trtllm.versions import ENGINE_LINES, line_of
from builder.plan.wording import listed
from builder.spec.sizes import approximate_bytes
from builder.spec.tensorrt_llm import TrtModel
from builder.weights.config import ModelConfig

_FLAGS = "engine.tensorrt_llm.{role}.flags"


def engine_names_of_version(context: PlanContext) -> Finding:
    """A flag or parameter of another version stops trtllm-build or the server."""
    rule, version = "names-of-version", context.spec.engine.trt.version
    line = ENGINE_LINES.get(line_of(version))
    if line is None:
        return Finding(rule, True, f"no table of names for {version}, see trtllm-version-supported")
    wrong: list[str] = []
    for role in roles(context):
        wrong += unknown(build_flags(context, role), line.build_flags, f"{role} flag")
        wrong += unknown(backend_parameters(context, role), line.backend_parameters, f"{role} parameter")
    if not wrong:
        return Finding(rule, True, f"every name is one of {line_of(version)}")
    return Finding(
        rule, False, f"TensorRT-LLM {version} does not know {'; '.join(wrong)}", "Use the version's names, or change the version"
    )


def draft_tokens_within_engine(context: PlanContext) -> Finding:
    """Reported as "draft tokens (N) larger than maximum (0)": the target was built without room for drafts."""
    rule = "draft-tokens-within-engine"
    if context.draft is None:
        return Finding(rule, True, "no draft")
    flags, wanted = build_flags(context, "target"), context.draft_tokens
    room = flags.get("max_draft_len", 0)
    where = _FLAGS.format(role="target")
    if flags.get("speculative_decoding_mode") != DRAFT_TOKENS_EXTERNAL:
        mend = f"Remove speculative_decoding_mode from {where}"
        return Finding(rule, False, f"the target is not built for {DRAFT_TOKENS_EXTERNAL}", mend)
    if not isinstance(room, int) or room < wanted:
        mend = f"Set max_draft_len to {wanted} in {where}, or leave it out"
        return Finding(rule, False, f"drafts of {wanted} tokens are larger than the target's maximum of {room}", mend)
    return Finding(rule, True, f"drafts of {wanted} within the target's maximum of {room}")


def streams_and_batches(context: PlanContext) -> Finding:
    """Only in-flight batching answers several requests at once and streams; beams do neither with drafts."""
    rule = "streams-and-batches"
    for role in roles(context):
        kind = backend_parameters(context, role)["gpt_model_type"]
        if kind not in (INFLIGHT, "inflight_batching"):
            mend = f"Remove gpt_model_type from engine.tensorrt_llm.{role}.parameters"
            return Finding(rule, False, f"the {role}'s gpt_model_type {kind} neither streams nor batches requests in flight", mend)
        if (beams := build_flags(context, role)["max_beam_width"]) != 1:
            mend = f"Remove max_beam_width from {_FLAGS.format(role=role)}"
            return Finding(rule, False, f"{beams} beams cannot be streamed or speculated on", mend)
        if (batch := build_flags(context, role)["max_batch_size"]) != context.spec.engine.max_batch_size:
            mend = f"Remove max_batch_size from {_FLAGS.format(role=role)}, and set engine.max_batch_size"
            return Finding(
                rule, False, f"the {role}'s engine has max_batch_size {batch}, the server {context.spec.engine.max_batch_size}", mend
            )
    return Finding(rule, True, f"in-flight batching of {context.spec.engine.max_batch_size}, decoupled")


def vocabulary_padded_alike(context: PlanContext) -> Finding:
    """Each model's vocabulary is padded to a multiple of its GPUs: unequal splits can pad one vocabulary to two sizes."""
    rule, trt = "vocab-padded-alike", context.spec.engine.trt
    if context.draft is None:
        return Finding(rule, True, "no draft")
    if context.target.vocab_size != context.draft.vocab_size:
        return Finding(rule, True, "not compared, see vocab-match")
    target, draft = _padded(context.target, trt.target), _padded(context.draft, trt.draft)
    if target == draft:
        return Finding(rule, True, f"both padded to {target:,} tokens")
    message = f"the vocabularies are padded to {target:,} and {draft:,} tokens, so their logits do not fit each other"
    return Finding(rule, False, message, "Split both models over the same number of GPUs, or use a draft with the target's vocabulary")


def _padded(model: ModelConfig, split: TrtModel) -> int:
    return -(-model.vocab_size // split.tensor_parallel) * split.tensor_parallel


def draft_logits_gathered(context: PlanContext) -> Finding:
    """With draft logits both engines must gather generation logits, else the server hangs."""
    rule = "draft-logits-gathered"
    if context.draft is None or not context.spec.engine.trt.draft_logits:
        return Finding(rule, True, "no draft logits")
    lacking = [role for role in roles(context) if not enabled(build_flags(context, role).get("gather_generation_logits"))]
    if not lacking:
        return Finding(rule, True, "both engines gather generation logits")
    mend = f"Remove gather_generation_logits from {_FLAGS.format(role=lacking[0])}, or set draft_logits to false"
    return Finding(rule, False, f"draft_logits is on, but the {listed(lacking)} does not gather generation logits", mend)


def no_context_logits(context: PlanContext) -> Finding:
    """trtllm-build refuses context logits together with room for drafts."""
    rule, flags = "no-context-logits", build_flags(context, "target")
    if context.draft is None or not enabled(flags.get("gather_context_logits")):
        return Finding(rule, True, "context logits are not gathered")
    mend = f"Remove gather_context_logits from {_FLAGS.format(role='target')}"
    return Finding(rule, False, "the target gathers context logits, which excludes max_draft_len", mend)


def reuse_has_paged_context(context: PlanContext) -> Finding:
    """Reused keys and values lie in pages: the prompt's attention must be able to read pages."""
    rule = "kv-reuse-paged-context"
    for role in roles(context):
        reuse = backend_parameters(context, role)["enable_kv_cache_reuse"] == "true"
        needs = reuse or context.draft is not None
        if needs and not enabled(build_flags(context, role).get("use_paged_context_fmha")):
            why = "KV reuse" if reuse else "speculation"
            mend = f"Remove use_paged_context_fmha from {_FLAGS.format(role=role)}"
            return Finding(rule, False, f"{why} is on, the {role}'s engine has no paged-context attention", mend)
    return Finding(rule, True, "engines read prompts from pages")


def drafts_reuse_kv(context: PlanContext) -> Finding:
    """Every round is a request of its own. TensorRT-LLM does not load such a target without KV reuse; a draft would read the whole text
    again each time."""
    rule = "kv-reuse-for-drafts"
    if context.draft is None:
        return Finding(rule, True, "no draft")
    lacking = [role for role in roles(context) if backend_parameters(context, role)["enable_kv_cache_reuse"] != "true"]
    if not lacking:
        return Finding(rule, True, "each round finds the text before it in the cache")
    mend = "Set engine.kv_cache.prefix_caching to true, and no enable_kv_cache_reuse in parameters"
    return Finding(rule, False, f"KV reuse is off for the {listed(lacking)}, and every round of drafts is a request that needs it", mend)


def same_limits(context: PlanContext) -> Finding:
    """A sequence that the target holds must fit the draft, or the round fails in the middle of an answer."""
    rule = "same-limits"
    if context.draft is None:
        return Finding(rule, True, "no draft")
    target, draft = build_flags(context, "target"), build_flags(context, "draft")
    names = [name for name in ("max_input_len", "max_seq_len") if target[name] != draft[name]]
    if not names:
        return Finding(rule, True, f"both engines hold {target['max_seq_len']} tokens")
    told = listed([f"{name} {target[name]} and {draft[name]}" for name in names])
    return Finding(rule, False, f"target and draft differ: {told}", f"Remove {listed(names)} from the flags and set engine.max_seq_len")


def logits_dtype_agrees(context: PlanContext) -> Finding:
    """The makers of checkpoints have different defaults, and a buffer read as the other type is noise."""
    rule = "logits-dtype-agrees"
    types = {role: build_flags(context, role)["logits_dtype"] for role in roles(context)}
    wanted = context.spec.engine.trt.logits_dtype
    if set(types.values()) == {wanted}:
        return Finding(rule, True, f"{wanted} in every engine and in the server")
    told = listed([f"{role} {dtype}" for role, dtype in types.items()])
    return Finding(
        rule, False, f"logits are {told}, the server's {wanted}", "Set engine.tensorrt_llm.logits_dtype, and no logits_dtype in flags"
    )


def placeholders_filled(context: PlanContext) -> Finding:
    """Protobuf takes ${...} inside a string: the server would look for a folder of that name."""
    rule = "placeholders-filled"
    settings = {(role, name): value for role in roles(context) for name, value in backend_parameters(context, role).items()}
    settings |= {(role, name): str(value) for role in roles(context) for name, value in build_flags(context, role).items()}
    open_ = [f"{role} {name} = {value}" for (role, name), value in settings.items() if "${" in value]
    if not open_:
        return Finding(rule, True, "no ${...} is left")
    return Finding(rule, False, f"{listed(open_)} is not filled in", "Write the value out: builder fills in nothing")


def pools_share_the_gpu(context: PlanContext) -> Finding:
    """A pool sized as a fraction of free memory takes it all, and the model that loads second finds none."""
    rule = "kv-pools-share-gpu"
    fractions = {
        role: float(value)
        for role in roles(context)
        if (value := backend_parameters(context, role).get("kv_cache_free_gpu_mem_fraction")) and _is_number(value)
    }
    devices = [set(context.spec.engine.trt.model(role).devices) for role in roles(context)]
    together = len(devices) > 1 and bool(devices[0] & devices[1])
    if not together or sum(fractions.values()) <= 1.0:
        return Finding(rule, True, "each KV pool is sized in tokens" if not fractions else f"fractions {listed(list(fractions.values()))}")
    told = listed([f"{role} {value:g}" for role, value in fractions.items()])
    mend = "Leave kv_cache_free_gpu_mem_fraction out: builder sizes both pools in tokens"
    return Finding(rule, False, f"target and draft share a GPU, and their fractions of its free memory are {told}", mend)


def kv_counts_both_models(context: PlanContext) -> Finding:
    """The budget is for both pools: the tokens of each cost bytes in its own model."""
    rule, budget = "kv-counts-both", context.spec.engine.kv_cache.memory
    total = 0
    for role in roles(context):
        model = context.target if role == "target" else context.cut_draft
        tokens = backend_parameters(context, role)["max_tokens_in_paged_kv_cache"]
        if model is not None and _is_number(tokens):
            total += int(float(tokens)) * cache_bytes_per_token(model, context.spec.target.dtype)
    message = f"pools of {approximate_bytes(total)} for {listed(roles(context))}, of {approximate_bytes(budget)}"
    if total <= budget:
        return Finding(rule, True, message)
    block = approximate_bytes(cache_block_bytes(context))
    mend = f"Leave max_tokens_in_paged_kv_cache out, or raise engine.kv_cache.memory; a block of both takes {block}"
    return Finding(rule, False, message, mend)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
