"""The names and shapes of the tensors that a model of a given shape has."""

from __future__ import annotations

from collections.abc import Mapping

from builder.errors import WeightsError
from builder.weights.config import ModelConfig

Shape = tuple[int, ...]


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Hugging Face names and shapes ([out, in] for matrices), in the order of the forward pass."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        linear(f"{layer}.self_attn.q_proj", queries, hidden, config.qkv_bias)
        linear(f"{layer}.self_attn.k_proj", keys, hidden, config.qkv_bias)
        linear(f"{layer}.self_attn.v_proj", keys, hidden, config.qkv_bias)
        if config.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (dim,)
        linear(f"{layer}.self_attn.o_proj", hidden, queries, config.output_bias)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        linear(f"{layer}.mlp.gate_proj", inner, hidden, config.mlp_bias)
        linear(f"{layer}.mlp.up_proj", inner, hidden, config.mlp_bias)
        linear(f"{layer}.mlp.down_proj", hidden, inner, config.mlp_bias)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_layout(config: ModelConfig, found: Mapping[str, Shape], where: str) -> None:
    """Raise WeightsError at the first tensor that is missing, has another shape, or does not belong to the model.

    A tensor the model does not know would be left out of the computation silently: it is refused, except for a copy of
    the tied head and the rotary frequencies of old files, which say nothing new.
    """
    if config.num_layers > len(found):  # before the names are listed: a damaged count may ask for billions of layers
        raise WeightsError(
            f"the configuration asks for {config.num_layers} layers, but there are only {len(found)} tensors",
            where=where,
            mend="Copy the weights again; the file or a shard is incomplete",
        )
    expected = expected_tensors(config)
    for name, shape in expected.items():
        if name not in found:
            raise WeightsError(f"the tensor {name} is missing", where=where, mend="Copy the weights again, all shards of them")
        if found[name] != shape:
            raise WeightsError(
                f"the tensor {name} has shape {list(found[name])}, but the configuration asks for {list(shape)}",
                where=where,
                mend="Take the weights and the configuration from the same model",
            )
    for name in found:
        harmless = name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")
        if name not in expected and not harmless:
            raise WeightsError(
                f"the tensor {name} does not belong to a {config.architecture} model of this configuration",
                where=where,
                mend="Merge adapters into the weights, or use a plain decoder-only checkpoint",
            )
