"""Rotary positions (Su et al. 2021) of all places of a context, computed once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builder.errors import EngineError
from builder.weights.config import ModelConfig
from builder.weights.rope import inverse_frequencies


def rotation(config: ModelConfig, max_seq_len: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [max_seq_len, head_dim / 2] each. EngineError when a frequency is not finite."""
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float64), torch.tensor(inverse_frequencies(config), dtype=torch.float64))
    if not math.isfinite(float(angles.max())):
        raise EngineError("rope frequencies are not finite", mend="Check rope_theta in the checkpoint's config.json")
    return angles.cos().float(), angles.sin().float()
