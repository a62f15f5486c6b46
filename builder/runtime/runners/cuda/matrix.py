"""A matrix of an engine on a device: dense, or INT4 with a scale for each group of inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from builder.compile.torch_aot.int4 import Int4
from builder.compile.torch_aot.unpacking import in_order, unpack_dense, unpack_int4, unpack_scales
from builder.errors import EngineError

INT4_SINCE = (8, 0)  # compute capability of torch's INT4 product (Ampere)
_INNER_TILES = 2  # of 16 inputs; more would ask for inputs in multiples of more than 32, the smallest group
_TOLERANCE = 0.02  # of the largest output: bfloat16 sums against float32 ones differ by less


class Dense:
    """weight [outputs, inputs], the outputs as the engine pads them; x [rows, inputs] -> [rows, outputs] in the type of the weights."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight)

    def wide(self, x: Tensor) -> Tensor:
        """The same in float32: logits rounded to bfloat16 would often be equal, and a token then chosen by its number."""
        if self.weight.dtype is torch.bfloat16 and x.device.type == "cuda":
            return torch.mm(x.to(self.weight.dtype), self.weight.T, out_dtype=torch.float32)
        return F.linear(x.float(), self.weight.float())


class Int4Product:
    """torch's product of bfloat16 rows with INT4 weights, (q - 8) * scale + zero, on GPUs since INT4_SINCE.

    Raises EngineError where the product is not that of the dequantised weights: the order torch packs in is its own affair.
    """

    def __init__(self, stored: Int4, device: torch.device) -> None:
        q, scale = stored.q.to(device), stored.scale.to(device).float()
        zero = torch.zeros_like(scale) if stored.minimum is None else stored.minimum.to(device).float() + 8 * scale
        self._packed = torch.ops.aten._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], _INNER_TILES)
        self._scales = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous().bfloat16()  # [groups, outputs, 2]
        self._group = stored.group_size
        self._check(stored, device)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten._weight_int4pack_mm(x.bfloat16(), self._packed, self._group, self._scales)
        return product

    def _check(self, stored: Int4, device: torch.device) -> None:
        x = torch.linspace(-1, 1, stored.q.shape[1], device=device)[None]
        expected = F.linear(x.bfloat16().float(), stored.dequantise().to(device))
        if float((self(x).float() - expected).abs().max()) > _TOLERANCE * float(expected.abs().max()):
            what = f"the INT4 product of torch {torch.__version__} is not that of the engine's weights"
            raise EngineError(what, where="draft.quantization", mend="Use the torch version of constraints.txt, or set draft to null")


def load_matrix(tensors: Mapping[str, Tensor], name: str, device: torch.device) -> Dense | Int4Product:
    """`tensors` are those of an engine folder. INT4 weights are dequantised to bfloat16 where the device has no product for them."""
    weight = tensors[f"{name}.weight"]
    if weight.dtype is not torch.uint8:
        return Dense(in_order(name, unpack_dense(weight)).to(device))
    scale, minimum = in_order(name, unpack_scales(tensors[f"{name}.scale"])), tensors.get(f"{name}.minimum")
    if minimum is not None:
        minimum = in_order(name, unpack_scales(minimum))
    stored = Int4(in_order(name, unpack_int4(weight)), scale, minimum)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= INT4_SINCE:
        return Int4Product(stored, device)
    return Dense(stored.dequantise().bfloat16().to(device))
