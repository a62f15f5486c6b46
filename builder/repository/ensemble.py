"""The four Triton models of a pipeline, their tensors, and how the ensemble wires them.

    <p>  text_input | messages -> <p>_tokenize -> <p>_decode (decoupled) -> <p>_detokenize -> text_output ...

What Triton 2.51 allows for this ensemble (tried, see tests/integration): an ensemble with a decoupled step is itself
decoupled, whatever its configuration says. HTTP `infer` and gRPC `ModelInfer` refuse decoupled models with
"doesn't support models with decoupled transaction policy". HTTP is served by `generate` (exactly one response:
the default, stream=false) and `generate_stream`; gRPC by `ModelStreamInfer`. Optional inputs of an ensemble work:
a step gets only the inputs that the request carried. Request parameters reach every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritonclient.grpc import model_config_pb2 as pb

TEXT_INPUTS = ("text_input", "messages")
STRING, INT32 = pb.TYPE_STRING, pb.TYPE_INT32

# One response of decode may carry several chunks of an answer (all of them when stream=false), and then of all n samples: an element
# of `parts` (models/parts.py) for each sample that the response carries, as of every output but usage.
DECODE_INPUTS = {"input_ids": (INT32, [-1]), "request": (STRING, [1])}
DECODE_OUTPUTS = {"parts": (STRING, [-1])}
ANSWER = {
    "text_output": (STRING, [-1]),
    "index": (INT32, [-1]),
    "finish_reason": (STRING, [-1]),
    "usage": (STRING, [1]),
    "decode_stats": (STRING, [-1]),
    "logprobs": (STRING, [-1]),
}


@dataclass(frozen=True)
class ModelNames:
    ensemble: str
    tokenize: str
    decode: str
    detokenize: str

    @classmethod
    def of(cls, pipeline: str) -> ModelNames:
        return cls(pipeline, f"{pipeline}_tokenize", f"{pipeline}_decode", f"{pipeline}_detokenize")

    def publish_order(self) -> tuple[str, str, str, str]:
        """The ensemble last: a version without its ensemble folder is not a version yet."""
        return self.decode, self.tokenize, self.detokenize, self.ensemble


def model_configs(pipeline: str) -> dict[str, pb.ModelConfig]:
    """Configuration by model name. Nothing in it depends on the version: all versions of a model share the file."""
    names = ModelNames.of(pipeline)
    tokenize = _python_model(names.tokenize, {}, DECODE_INPUTS)
    tokenize.input.extend(_optional_text_inputs())
    decode = _python_model(names.decode, DECODE_INPUTS, DECODE_OUTPUTS)
    decode.model_transaction_policy.decoupled = True
    detokenize = _python_model(names.detokenize, DECODE_OUTPUTS, ANSWER)
    ensemble = pb.ModelConfig(name=names.ensemble, platform="ensemble", input=_optional_text_inputs(), output=_outputs(ANSWER))
    ensemble.model_transaction_policy.decoupled = True
    ensemble.ensemble_scheduling.step.extend(_step(model) for model in (tokenize, decode, detokenize))
    return {model.name: model for model in (ensemble, tokenize, decode, detokenize)}


Tensors = dict[str, tuple[int, list[int]]]  # (data type, dims) by name


def _python_model(name: str, inputs: Tensors, outputs: Tensors) -> pb.ModelConfig:
    model = pb.ModelConfig(name=name, backend="python", output=_outputs(outputs))
    model.input.extend(pb.ModelInput(name=tensor, data_type=kind, dims=dims) for tensor, (kind, dims) in inputs.items())
    model.instance_group.add(kind=pb.ModelInstanceGroup.KIND_CPU, count=1)
    return model


def _optional_text_inputs() -> list[pb.ModelInput]:
    return [pb.ModelInput(name=name, data_type=STRING, dims=[1], optional=True) for name in TEXT_INPUTS]


def _outputs(tensors: Tensors) -> list[pb.ModelOutput]:
    return [pb.ModelOutput(name=name, data_type=kind, dims=dims) for name, (kind, dims) in tensors.items()]


def _step(model: pb.ModelConfig) -> pb.ModelEnsembling.Step:
    """Tensors keep their names inside the ensemble."""
    step = pb.ModelEnsembling.Step(model_name=model.name, model_version=-1)  # -1: the newest loaded version
    for tensor in model.input:
        step.input_map[tensor.name] = tensor.name
    for tensor in model.output:
        step.output_map[tensor.name] = tensor.name
    return step
