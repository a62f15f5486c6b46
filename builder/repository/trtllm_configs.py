"""config.pbtxt of the models of a hand-over: target and draft on Triton's tensorrtllm backend, and the decode model before them.

The tensors are those of the backend's documentation for TensorRT-LLM 1.2. `stop` ends a request; `draft_input_ids` are the tokens
to check, `draft_logits` what they were drawn from. `<p>_decode` calls them by builder/repository/engine_client.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonclient.grpc import model_config_pb2 as pb

from builder.compile.trtllm.scripts import engine_folder
from builder.plan.context import PlanContext
from builder.plan.trtllm.backend import backend_parameters
from builder.plan.trtllm.flags import Role, roles

INT32, FLOAT, BOOL, FP16 = pb.TYPE_INT32, pb.TYPE_FP32, pb.TYPE_BOOL, pb.TYPE_FP16
Tensors = dict[str, tuple[int, list[int]]]  # (data type, dims without the batch) by name

REQUIRED: Tensors = {"input_ids": (INT32, [-1]), "input_lengths": (INT32, [1]), "request_output_len": (INT32, [1])}
OPTIONAL: Tensors = {
    "end_id": (INT32, [1]),
    "pad_id": (INT32, [1]),
    "temperature": (FLOAT, [1]),
    "runtime_top_k": (INT32, [1]),
    "runtime_top_p": (FLOAT, [1]),
    "seed": (pb.TYPE_UINT64, [1]),
    "repetition_penalty": (FLOAT, [1]),
    "return_generation_logits": (BOOL, [1]),
    "streaming": (BOOL, [1]),
    "stop": (BOOL, [1]),
}
SCALARS = frozenset({"input_lengths", "request_output_len", *OPTIONAL})  # [batch, 1] on the wire, [batch] in the engine


@dataclass(frozen=True)
class EngineModels:
    """Names of the two engine models of a pipeline."""

    target: str
    draft: str

    @classmethod
    def of(cls, pipeline: str) -> EngineModels:
        return cls(f"{pipeline}_target", f"{pipeline}_draft")

    def by_role(self) -> dict[Role, str]:
        return {"target": self.target, "draft": self.draft}


def engine_configs(context: PlanContext) -> dict[str, pb.ModelConfig]:
    """Configuration by model name, for the models that are built."""
    names = EngineModels.of(context.spec.metadata.name).by_role()
    return {names[role]: _engine_config(context, role, names[role]) for role in roles(context)}


def _engine_config(context: PlanContext, role: Role, name: str) -> pb.ModelConfig:
    logits = FLOAT if context.spec.engine.trt.logits_dtype == "float32" else FP16
    optional = OPTIONAL | ({"draft_input_ids": (INT32, [-1]), "draft_logits": (logits, [-1, -1])} if role == "target" else {})
    config = pb.ModelConfig(name=name, backend="tensorrtllm", max_batch_size=context.spec.engine.max_batch_size)
    config.model_transaction_policy.decoupled = True  # else it answers only when a request has ended
    config.input.extend(_input(tensor, kind, optional=False) for tensor, kind in REQUIRED.items())
    config.input.extend(_input(tensor, kind, optional=True) for tensor, kind in optional.items())
    outputs: Tensors = {"output_ids": (INT32, [-1, -1]), "sequence_length": (INT32, [-1]), "generation_logits": (logits, [-1, -1, -1])}
    config.output.extend(pb.ModelOutput(name=tensor, data_type=kind, dims=dims) for tensor, (kind, dims) in outputs.items())
    config.instance_group.add(kind=pb.ModelInstanceGroup.KIND_CPU, count=1)  # the backend takes the GPUs itself
    _set_parameters(config, backend_parameters(context, role) | {"gpt_model_path": engine_folder(name)})
    return config


def _input(name: str, tensor: tuple[int, list[int]], *, optional: bool) -> pb.ModelInput:
    kind, dims = tensor
    ragged = name in ("input_ids", "draft_input_ids")
    made = pb.ModelInput(name=name, data_type=kind, dims=dims, optional=optional, allow_ragged_batch=ragged)
    if name in SCALARS:
        made.reshape.CopyFrom(pb.ModelTensorReshape(shape=[]))
    return made


def _set_parameters(config: pb.ModelConfig, parameters: Mapping[str, str]) -> None:
    for name, value in parameters.items():
        config.parameters[name].string_value = value
