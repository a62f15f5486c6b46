"""Memory of one GPU under TensorRT-LLM, item by item: the fullest one, which runs its share of both models.

Weights, embeddings and caches follow from the shapes. Activations are an upper bound; CUDA graphs and the reserve are
allowances that nobody measured here.
"""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.memory_item import MemoryItem
from builder.plan.parameters import (
    DTYPE_BYTES,
    FLOAT32_BYTES,
    activation_width,
    cache_bytes_per_token,
    count_parameters,
    dense_bytes,
    int4_bytes,
)
from builder.spec.target import Dtype
from builder.spec.tensorrt_llm import TrtModel
from builder.weights.config import ModelConfig

HALF: Dtype = "bfloat16"
CUDA_GRAPHS = 1 << 30  # bytes; allowance for the graphs of all batch sizes, one set for each model of the LLM class
RESERVE = 2 << 30  # bytes; allowance for the CUDA context, libraries' workspaces and NCCL


def items(context: PlanContext, positions: int) -> tuple[MemoryItem, ...]:
    """`positions` is the size of each KV pool in tokens."""
    return (
        *_weights("target", context.target, target_bytes(context), context.spec.target.dtype, context.spec.engine.trt.target),
        *_plain_instance(context),
        *_draft_weights(context),
        *_caches(context, positions),
        *_activations(context),
        *_graphs(context),
        MemoryItem("reserve", RESERVE, "CUDA context, workspaces and NCCL, a fixed allowance"),
    )


def target_bytes(context: PlanContext) -> int:
    """Weight bytes of one target pass on all its GPUs together; the embedding is a look-up of single rows and not among them."""
    count = count_parameters(context.target)
    return dense_bytes(count.linear + count.head + count.vectors, context.spec.target.dtype)


def draft_bytes(context: PlanContext) -> int:
    """The same of a draft step. AWQ packs the layers' matrices; head, norms and biases stay in 16 bits."""
    if context.cut_draft is None or context.spec.draft is None:
        return 0
    count = count_parameters(context.cut_draft)
    return int4_bytes(count.linear, context.spec.draft.quantization) + dense_bytes(count.head + count.vectors, HALF)


def has_plain_instance(context: PlanContext) -> bool:
    """The target is loaded a second time, without a draft."""
    engine = context.spec.engine
    return engine.chosen_backend == "trtllm-llmapi" and context.draft_tokens > 0 and engine.trt.plain_instance


def _weights(role: str, model: ModelConfig, size: int, dtype: Dtype, split: TrtModel) -> list[MemoryItem]:
    embedding = dense_bytes(count_parameters(model).embedding, dtype)
    how = f"{size:,} B of layers, head and norms{_over(split.world_size)}"
    return [
        MemoryItem(f"{role} weights", size // split.world_size, how),
        MemoryItem(f"{role} embedding", embedding // split.tensor_parallel, f"{embedding:,} B{_over(split.tensor_parallel)}"),
    ]


def _plain_instance(context: PlanContext) -> list[MemoryItem]:
    if not has_plain_instance(context):
        return []
    size = target_bytes(context) + dense_bytes(count_parameters(context.target).embedding, context.spec.target.dtype)
    gpus = context.spec.engine.trt.target.world_size
    how = f"{size:,} B: the target once more, for requests without speculation{_over(gpus)}"
    return [MemoryItem("plain instance", size // gpus, how)]


def _draft_weights(context: PlanContext) -> list[MemoryItem]:
    if context.cut_draft is None:
        return []
    return _weights("draft", context.cut_draft, draft_bytes(context), HALF, _draft_split(context))


def _draft_split(context: PlanContext) -> TrtModel:
    """The LLM class runs the draft on the target's GPUs, split as the target is."""
    trt = context.spec.engine.trt
    return trt.target if context.spec.engine.chosen_backend == "trtllm-llmapi" else trt.draft


def _caches(context: PlanContext, positions: int) -> list[MemoryItem]:
    """One pool for each model: sizing the first alone leaves nothing for the second."""
    dtype, engine = context.spec.target.dtype, context.spec.engine
    models = [("target", context.target, engine.trt.target)]
    if context.cut_draft is not None:
        models.append(("draft", context.cut_draft, _draft_split(context)))
    wanted = engine.max_batch_size * engine.max_seq_len
    made = []
    for role, model, split in models:
        each = cache_bytes_per_token(model, dtype)
        how = f"{positions:,} positions x {each:,} B{_over(split.world_size)}; a full batch of longest sequences is {wanted:,}"
        made.append(MemoryItem(f"{role} kv cache", positions * each // split.world_size, how))
    if has_plain_instance(context):
        each = cache_bytes_per_token(context.target, dtype)
        how = f"{positions:,} positions x {each:,} B{_over(engine.trt.target.world_size)}"
        made.append(MemoryItem("plain instance kv cache", positions * each // engine.trt.target.world_size, how))
    return made


def _activations(context: PlanContext) -> list[MemoryItem]:
    engine, model = context.spec.engine, context.target
    width, size = activation_width(model), DTYPE_BYTES[context.spec.target.dtype]
    rows = engine.max_batch_size * (2 * context.draft_tokens + 1)  # verified rows, and the drafted ones' distributions
    how = f"{engine.max_num_tokens:,} rows x {width:,} values x {size} B"
    logits = f"{rows:,} rows x {model.vocab_size:,} tokens x {FLOAT32_BYTES} B"
    return [
        MemoryItem("activations", engine.max_num_tokens * width * size, how),
        MemoryItem("logits", rows * model.vocab_size * FLOAT32_BYTES, logits),
    ]


def _graphs(context: PlanContext) -> list[MemoryItem]:
    """Engines of trtllm-build capture none unless asked; the LLM class does by default."""
    if context.spec.engine.chosen_backend != "trtllm-llmapi":
        return []
    models = 1 + (context.cut_draft is not None) + has_plain_instance(context)
    return [MemoryItem("cuda graphs", models * CUDA_GRAPHS, f"{models} x 1 GiB, a fixed allowance")]


def _over(gpus: int) -> str:
    return f" / {gpus} GPUs" if gpus > 1 else ""
