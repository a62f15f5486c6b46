"""From a checkpoint to the tensors of an engine: fused, quantised and packed matrices, norms in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch

from builder.compile.torch_aot.int4 import Int4, quantise, relative_error
from builder.compile.torch_aot.packing import interleave, pack_dense, pack_int4, pack_scales, pad_outputs
from builder.weights import Checkpoint
from builder.weights.config import ModelConfig

WeightType = Literal["bfloat16", "float32", "int4"]
Tensors = dict[str, torch.Tensor]


class Packer:
    """Packs one checkpoint, layer by layer. `errors` fills with the relative quantisation error of each INT4 matrix.

    `embedding` False leaves the token embedding out: a draft made from the target's own weights reads the target's.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: WeightType,
        *,
        layers: int | None = None,
        group_size: int = 32,
        symmetric: bool = True,
        embedding: bool = True,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = replace(checkpoint.config, num_layers=layers or checkpoint.config.num_layers)
        self.weights = weights
        self.group_size = group_size
        self.symmetric = symmetric
        self.embedding = embedding
        self.errors: dict[str, float] = {}

    def tensors(self, advance: Callable[[str], None] = lambda _: None) -> Tensors:
        """All tensors of the engine by name; `advance(step)` is called after each layer and after the head."""
        packed: Tensors = {"norm": self._float("model.norm.weight")}
        if self.embedding:
            packed["embed"] = self._embedding()
        for i in range(self.config.num_layers):
            packed.update(self._layer(i))
            advance(f"layer {i}")
        packed.update(self._head())
        advance("head")
        return packed

    def _embedding(self) -> torch.Tensor:
        kept = torch.float32 if self.weights == "float32" else torch.bfloat16
        return self.checkpoint.tensor("model.embed_tokens.weight").to(kept)

    def _layer(self, i: int) -> Tensors:
        source, name = f"model.layers.{i}", f"layers.{i}"
        attention, mlp = f"{source}.self_attn", f"{source}.mlp"
        packed = {
            f"{name}.attention_norm": self._float(f"{source}.input_layernorm.weight"),
            f"{name}.mlp_norm": self._float(f"{source}.post_attention_layernorm.weight"),
        }
        if self.config.qk_norm:
            packed[f"{name}.query_norm"] = self._float(f"{attention}.q_norm.weight")
            packed[f"{name}.key_norm"] = self._float(f"{attention}.k_norm.weight")
        queries_keys_values = [f"{attention}.{part}_proj" for part in ("q", "k", "v")]
        packed.update(self._matrix(f"{name}.qkv", torch.cat(self._parts(queries_keys_values, "weight"))))
        packed.update(self._matrix(f"{name}.output", self.checkpoint.tensor(f"{attention}.o_proj.weight")))
        packed.update(self._matrix(f"{name}.gate_up", interleave(*self._parts([f"{mlp}.gate_proj", f"{mlp}.up_proj"], "weight"))))
        packed.update(self._matrix(f"{name}.down", self.checkpoint.tensor(f"{mlp}.down_proj.weight")))
        packed.update(self._biases(name, attention, mlp))
        return packed

    def _biases(self, name: str, attention: str, mlp: str) -> Tensors:
        config, biases = self.config, {}
        if config.qkv_bias:
            biases[f"{name}.qkv.bias"] = torch.cat(self._parts([f"{attention}.{part}_proj" for part in ("q", "k", "v")], "bias"))
        if config.output_bias:
            biases[f"{name}.output.bias"] = self.checkpoint.tensor(f"{attention}.o_proj.bias")
        if config.mlp_bias:
            biases[f"{name}.gate_up.bias"] = interleave(*self._parts([f"{mlp}.gate_proj", f"{mlp}.up_proj"], "bias"))
            biases[f"{name}.down.bias"] = self.checkpoint.tensor(f"{mlp}.down_proj.bias")
        return {key: bias.float().contiguous() for key, bias in biases.items()}

    def _head(self) -> Tensors:
        name = "model.embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"
        return self._matrix("head", self.checkpoint.tensor(name))

    def _matrix(self, name: str, weight: torch.Tensor) -> Tensors:
        weight = pad_outputs(weight)
        if self.weights != "int4":
            return {f"{name}.weight": pack_dense(weight.to(getattr(torch, self.weights)))}
        quantised = quantise(weight, self.group_size, self.symmetric)
        self.errors[name] = round(relative_error(weight, quantised), 5)
        return {f"{name}.{part}": tensor for part, tensor in _int4_parts(quantised)}

    def _parts(self, modules: list[str], kind: str) -> list[torch.Tensor]:
        return [self.checkpoint.tensor(f"{module}.{kind}") for module in modules]

    def _float(self, name: str) -> torch.Tensor:
        return self.checkpoint.tensor(name).float()


def _int4_parts(quantised: Int4) -> Iterator[tuple[str, torch.Tensor]]:
    yield "weight", pack_int4(quantised.q)
    yield "scale", pack_scales(quantised.scale)
    if quantised.minimum is not None:
        yield "minimum", pack_scales(quantised.minimum)


def matrix_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of every matrix that a decode pass streams, by name; the embedding is a lookup and not among them."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {}
    for i in range(config.num_layers):
        sizes[f"layers.{i}.qkv"] = (queries + 2 * keys, config.hidden_size)
        sizes[f"layers.{i}.output"] = (config.hidden_size, queries)
        sizes[f"layers.{i}.gate_up"] = (2 * config.intermediate_size, config.hidden_size)
        sizes[f"layers.{i}.down"] = (config.hidden_size, config.intermediate_size)
    sizes["head"] = (config.vocab_size, config.hidden_size)
    return sizes
