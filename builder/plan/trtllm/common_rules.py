"""Rules of both trtllm backends: the GPU, the split over GPUs, the format of the draft, and whether speculation pays."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.cost import break_even, speed_up
from builder.plan.devices import AMPERE, DEVICES
from builder.plan.finding import Finding
from builder.plan.forecast import roofline_forecast, stated_times
from builder.plan.trtllm.flags import roles
from builder.plan.trtllm.versions import ENGINE_LINES, LLMAPI_LINES, line_of
from builder.plan.wording import listed

AWQ_GROUPS = {"trtllm-engine": (64, 128), "trtllm-llmapi": (128,)}
PROPOSERS = {"trtllm-engine": ("draft_model", "hybrid", "none"), "trtllm-llmapi": ("draft_model", "ngram", "none")}


def version_supported(context: PlanContext) -> Finding:
    """The backend exists only in some lines, and names are known only for lines with a table."""
    rule, engine = "trtllm-version-supported", context.spec.engine
    lines = list(ENGINE_LINES if engine.chosen_backend == "trtllm-engine" else LLMAPI_LINES)
    if line_of(engine.trt.version) in lines:
        return Finding(rule, True, f"TensorRT-LLM {engine.trt.version} has {engine.chosen_backend}")
    mend = f"Set engine.tensorrt_llm.version to {listed([f'{line}.x' for line in lines], 'or')}"
    if engine.chosen_backend == "trtllm-engine" and line_of(engine.trt.version) in LLMAPI_LINES:
        mend += ", or backend to trtllm-llmapi: engines were dropped after 1.2"
    return Finding(rule, False, f"{engine.chosen_backend} is not supported for TensorRT-LLM {engine.trt.version}", mend)


def dtype_supported(context: PlanContext) -> Finding:
    """BF16 and the INT4-AWQ kernels start with Ampere."""
    rule, device = "dtype-supported", context.device
    formats = [context.spec.target.dtype] + (["INT4-AWQ"] if context.draft is not None else [])
    refused = [name for name in formats if name != "float32"]
    if device is None or device.architecture >= AMPERE or not refused:
        return Finding(rule, True, f"{listed(formats)} on sm_{device.architecture if device else 'none'}")
    message = f"{device.name} (sm_{device.architecture}) has no {listed(refused)}"
    return Finding(rule, False, message, "Choose a GPU of sm_80 or newer")


def engine_runs_on_this_gpu(context: PlanContext) -> Finding:
    """An engine runs on the architecture, and with the TensorRT, it was compiled for."""
    rule, engine = "engine-matches-server", context.spec.engine
    if engine.gpu is None or engine.chosen_backend != "trtllm-engine":
        return Finding(rule, True, "nothing is compiled ahead for one GPU")
    built, served = DEVICES[engine.gpu.built_on or engine.gpu.name], DEVICES[engine.gpu.name]
    if built.architecture != served.architecture:
        message = f"engines built on {built.name} (sm_{built.architecture}) do not run on {served.name} (sm_{served.architecture})"
        return Finding(rule, False, message, "Build on the kind of GPU that serves, and set engine.gpu.built_on to it")
    line = ENGINE_LINES.get(line_of(engine.trt.version))
    if line is not None and engine.trt.triton not in (None, line.triton):
        message = f"engines of TensorRT-LLM {engine.trt.version} need TensorRT {line.tensorrt}, Triton {engine.trt.triton} has another"
        return Finding(rule, False, message, f"Serve with Triton {line.triton}, and set engine.tensorrt_llm.triton to it")
    return Finding(
        rule, True, f"sm_{served.architecture}, TensorRT {line.tensorrt if line else 'unknown'}; the launch script compares again"
    )


def awq_group_supported(context: PlanContext) -> Finding:
    """The kernels know few group sizes, and only scales, no minimums."""
    rule, draft = "awq-format-supported", context.spec.draft
    if context.draft is None or draft is None:
        return Finding(rule, True, "no draft")
    allowed, format_ = AWQ_GROUPS[context.spec.engine.chosen_backend], draft.quantization
    if format_.group_size in allowed and format_.symmetric:
        return Finding(rule, True, f"INT4-AWQ in groups of {format_.group_size}")
    message = f"{context.spec.engine.chosen_backend} has no INT4 in groups of {format_.group_size}"
    if not format_.symmetric:
        message = f"{context.spec.engine.chosen_backend} has no asymmetric INT4"
    return Finding(rule, False, message, f"Set draft.quantization to {{group_size: {allowed[-1]}, symmetric: true}}")


def awq_group_within_gpu(context: PlanContext) -> Finding:
    """Matrices whose input is shared out over GPUs keep whole groups on each."""
    rule, draft = "awq-group-within-gpu", context.spec.draft
    if context.draft is None or draft is None:
        return Finding(rule, True, "no draft")
    trt = context.spec.engine.trt
    split = trt.target if context.spec.engine.chosen_backend == "trtllm-llmapi" else trt.draft
    gpus, size = split.tensor_parallel, draft.quantization.group_size
    odd = [width for width in (context.draft.num_heads * context.draft.head_dim, context.draft.intermediate_size) if width % (gpus * size)]
    if not odd or gpus == 1:
        return Finding(rule, True, f"whole groups of {size} on {gpus} GPUs" if gpus > 1 else "one GPU")
    message = f"groups of {size} do not divide the draft's {listed(odd)} inputs over {gpus} GPUs"
    return Finding(rule, False, message, "Split the draft over fewer GPUs (orchestrator mode), or use a draft of other widths")


def tensor_parallel_divides_heads(context: PlanContext) -> Finding:
    """Each GPU takes whole heads; key-value heads may be copied, but only whole times."""
    rule, trt = "tp-divides-heads", context.spec.engine.trt
    for role in roles(context):
        model, split = (context.target if role == "target" else context.draft), trt.model(role).tensor_parallel
        if context.spec.engine.chosen_backend == "trtllm-llmapi":
            split = trt.target.tensor_parallel
        if model is None:
            continue
        heads, shared = model.num_heads, model.num_kv_heads
        if heads % split or (shared % split and split % shared):
            fitting = [n for n in (1, 2, 4, 8, 16) if heads % n == 0 and (shared % n == 0 or n % shared == 0)]
            message = f"{split} GPUs cannot share the {role}'s {heads} heads and {shared} key-value heads"
            return Finding(rule, False, message, f"Set engine.tensorrt_llm.{role}.tensor_parallel to {listed(fitting, 'or')}")
    return Finding(rule, True, f"{trt.target.tensor_parallel} GPUs share each layer of the target")


def draft_on_the_target_s_node(context: PlanContext) -> Finding:
    """Drafts travel to the target every round: over a network that costs more than they save (M11)."""
    rule, gpu, trt = "draft-on-target-node", context.spec.engine.gpu, context.spec.engine.trt
    if context.draft is None or gpu is None:
        return Finding(rule, True, "no draft")
    nodes = {role: {device // gpu.per_node for device in trt.model(role).devices} for role in roles(context)}
    if nodes["draft"] <= nodes["target"] and len(nodes["draft"]) == 1:
        return Finding(rule, True, f"draft and target on node {min(nodes['draft'])}")
    message = f"the draft is on node {listed(sorted(nodes['draft']))}, the target on {listed(sorted(nodes['target']))}"
    return Finding(rule, False, message, "Set engine.tensorrt_llm.draft.gpus to GPUs of the target's node")


def world_size_fits(context: PlanContext) -> Finding:
    """One MPI rank for each GPU of a model: tp x pp, neither more nor fewer than it is given."""
    rule, engine, trt = "world-size", context.spec.engine, context.spec.engine.trt
    count = engine.gpu.count if engine.gpu else 0
    for role in roles(context):
        split = trt.model(role)
        product = f"{role} {split.tensor_parallel} x {split.pipeline_parallel}"
        if split.gpus is not None and len(set(split.gpus)) != split.world_size:
            message = f"{product} ranks need {split.world_size} GPUs of their own, gpus names {len(set(split.gpus))}"
            return Finding(rule, False, message, f"Name {split.world_size} in engine.tensorrt_llm.{role}.gpus, or leave it out")
        if max(split.devices) >= count:
            message = f"{product} ranks reach GPU {max(split.devices)}, engine.gpu.count is {count}"
            return Finding(rule, False, message, f"Set engine.gpu.count to {max(split.devices) + 1} or more, or split over fewer")
    leader = engine.chosen_backend == "trtllm-engine" and trt.launch == "leader"
    if leader and context.draft is not None and trt.draft.world_size != trt.target.world_size:
        message = f"leader mode starts one number of ranks for all models, target has {trt.target.world_size}, draft {trt.draft.world_size}"
        return Finding(rule, False, message, "Set engine.tensorrt_llm.launch to orchestrator, or split both models alike")
    if trt.launch == "orchestrator" and engine.gpu is not None and engine.gpu.nodes > 1 and engine.chosen_backend == "trtllm-engine":
        return Finding(rule, False, "orchestrator mode starts ranks on one node only", "Set engine.tensorrt_llm.launch to leader")
    return Finding(rule, True, f"{trt.target.world_size} ranks for the target on {count} GPUs")


def proposer_supported(context: PlanContext) -> Finding:
    """Not every proposer exists outside torch_aot; no release has layer early exit, of which the rules about exits speak."""
    rule, backend = "proposer-supported", context.spec.engine.chosen_backend
    proposer, allowed = context.spec.speculation.proposer, PROPOSERS[backend]
    if proposer == "early_exit":
        return Finding(rule, True, "not looked at, see early_exit.mode")
    if proposer in allowed:
        return Finding(rule, True, f"{backend} has {proposer}")
    return Finding(rule, False, f"{backend} has no proposer {proposer}", f"Set speculation.proposer to {listed(allowed, 'or')}")


def settings_supported(context: PlanContext) -> Finding:
    """Settings that TensorRT-LLM has nothing for must not look as if they worked."""
    rule, spec = "settings-supported", context.spec
    admits = spec.engine.chosen_backend == "trtllm-engine"  # our loop decides who runs; LLM() does so itself
    idle = {
        "draft.vocabulary": spec.used_draft is not None and spec.used_draft.vocabulary != "all",
        "early_exit.layers": spec.early_exit.layers != "auto",
        "speculation.control.early_stop": spec.speculation.control.early_stop,
        "engine.policy": spec.engine.policy != "fcfs" and not admits,
        "engine.kv_cache.prefix_isolation": spec.engine.kv_cache.prefix_isolation != "none",
        "serving.tenants": bool(spec.serving.tenants) and not admits,
    }
    used = [key for key, set_ in idle.items() if set_]
    if not used:
        return Finding(rule, True, "no setting without effect")
    return Finding(rule, False, f"{listed(used)} has no effect on {spec.engine.chosen_backend}", "Leave it out, or use torch_aot")


def speculation_pays(context: PlanContext) -> Finding:
    """The commonest report of all: no speed-up, since the draft costs too much of a target step."""
    rule, measured = "speculation-pays", context.spec.speculation.measured
    if context.draft_tokens == 0:
        return Finding(rule, True, "no speculation")
    times, source = stated_times(measured), "measured"
    if times is None and (estimate := roofline_forecast(context, None)):
        times, source = estimate.times, "roofline"
    if times is None:
        return Finding(rule, True, "not predicted: no times are known")
    mend = "Choose a smaller draft, fewer draft.layers, another max_draft_tokens, or proposer none"
    least = break_even(times, context.draft_tokens)
    if least is None:
        return Finding(
            rule, False, f"by {source} times speculation never pays: {times.draft / times.plain:.2f} of a target step a draft", mend
        )
    if measured is not None and (gain := speed_up(times, measured.acceptance, context.draft_tokens)) < 1.0:
        return Finding(
            rule, False, f"by {source} times and acceptance {measured.acceptance:.2f} it is {gain:.2f}x, break-even {least:.2f}", mend
        )
    return Finding(rule, True, f"by {source} times it pays from acceptance {least:.2f}")
