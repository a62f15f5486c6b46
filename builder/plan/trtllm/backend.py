"""Parameters of Triton's tensorrtllm backend for each of the two models (trtllm-engine)."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.memory import kv_blocks
from builder.plan.trtllm.flags import Role

INFLIGHT = "inflight_fused_batching"
ENGINE_FOLDER = "engine"  # inside the model's version folder
CANCELLATION_MS = 100  # how often a model looks for cancelled requests


def backend_parameters(context: PlanContext, role: Role) -> dict[str, str]:
    """Name -> string_value of config.pbtxt; the engine's folder is not among them, since it follows from the repository's place.

    Each pool is sized in tokens: the backend's default, a fraction of the free memory, starves the model that loads second.
    engine.tensorrt_llm.<role>.parameters comes last and wins.
    """
    engine, split = context.spec.engine, context.spec.engine.trt.model(role)
    parameters = {
        "gpt_model_type": INFLIGHT,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "max_tokens_in_paged_kv_cache": str(kv_blocks(context) * engine.kv_cache.block_size),
        "enable_kv_cache_reuse": text(engine.kv_cache.prefix_caching),
        "exclude_input_in_output": "true",
        "gpu_device_ids": ",".join(map(str, split.devices)),
        "cancellation_check_period_ms": str(CANCELLATION_MS),
    }
    return parameters | {name: text(value) for name, value in split.parameters.items()}


def text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
