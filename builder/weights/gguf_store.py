"""Tensors of a GGUF file under Hugging Face names, dequantised when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from builder.errors import WeightsError
from builder.weights.config import ModelConfig
from builder.weights.gguf_file import GgufFile, GgufTensor

_TYPE = GGMLQuantizationType
SUPPORTED_TYPES = (_TYPE.F32, _TYPE.F16, _TYPE.BF16, _TYPE.Q8_0, _TYPE.Q4_0, _TYPE.Q4_1, _TYPE.Q4_K, _TYPE.Q6_K)
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


class GgufStore:
    """Tensors by Hugging Face name; shapes come from the file's table, data is memory-mapped."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file, self._config = file, config
        # llama.cpp stores the rotated rows of `llama` files pairwise interleaved; qwen's are left as they were.
        self._interleaved = file.require("general.architecture") == "llama"
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in file.tensors.items():
            if name == "rope_freqs.weight":  # part of the configuration: see gguf_config
                continue
            if tensor.kind not in SUPPORTED_TYPES:
                raise WeightsError(
                    f"the tensor {name} has type {tensor.kind.name}, which is not supported",
                    where=str(file.path),
                    mend=f"Supported types are {', '.join(kind.name for kind in SUPPORTED_TYPES)}",
                )
            self._tensors[hf_name(name)] = tensor
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def where(self, name: str) -> str:
        return f"{self._file.path} ({self._tensors[name].name})"

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as bfloat16 when the file has it so, else dequantised to float32."""
        stored = self._tensors[name]
        if stored.kind == _TYPE.BF16:
            tensor = torch.from_numpy(stored.data.copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.array(dequantize(stored.data, stored.kind), dtype=np.float32))
        if self._interleaved and ".self_attn.q_proj." in name:
            return deinterleave(tensor, self._config.num_heads)
        if self._interleaved and ".self_attn.k_proj." in name:
            return deinterleave(tensor, self._config.num_kv_heads)
        return tensor

    def raw(self, name: str) -> Iterator[bytes | memoryview]:
        """What identifies the tensor: its type, then its bytes as they are in the file."""
        stored = self._tensors[name]
        yield stored.kind.name.encode()
        yield memoryview(stored.data)  # type: ignore[arg-type] # NumPy 1 has no Buffer type


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that is not a llama's is kept, for the layout check to refuse."""
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        return f"{_TOP[part]}.{kind}" if part in _TOP else name
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}" if part in _LAYER else name


def deinterleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows [heads * head_dim, ...] from llama.cpp's order (pairs 2i, 2i+1 rotate together) to Hugging Face's (i, i + head_dim/2)."""
    pairs = rows.shape[0] // heads // 2
    return rows.reshape(heads, pairs, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape).contiguous()
