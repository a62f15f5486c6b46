"""Rotary frequencies, and Llama 3's scaling of them in both directions: from its constants and back from a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from builder.weights.config import ModelConfig, RopeScaling

# The constants of every published Llama 3.x; only the factor differs (8 or 32).
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_TOLERANCE = 1e-4  # relative; a GGUF stores the table in float32


def inverse_frequencies(config: ModelConfig) -> list[float]:
    """Angle per position in radians of each of the head_dim / 2 rotated pairs, scaling included (RoFormer, eq. 15)."""
    plain = [config.rope_theta ** (-2 * i / config.head_dim) for i in range(config.head_dim // 2)]
    if config.rope_scaling is None:
        return plain
    return [frequency / divisor for frequency, divisor in zip(plain, _divisors(plain, config.rope_scaling), strict=True)]


def _divisors(plain: Sequence[float], scaling: RopeScaling) -> list[float]:
    """Llama 3.1's rule: long waves are stretched by `factor`, short ones stay, those between are blended linearly."""
    divisors = []
    for frequency in plain:
        turns = scaling.original_max_position * frequency / (2 * math.pi)  # full turns within the original context
        smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = min(1.0, max(0.0, smooth))
        divisors.append(1.0 / ((1.0 - smooth) / scaling.factor + smooth))
    return divisors


def fit_scaling(divisors: Sequence[float], rope_theta: float) -> RopeScaling | None:
    """The Llama 3 constants behind a table of head_dim / 2 divisors (a GGUF's rope_freqs.weight), or None if there are none.

    The published constants are tried first. Otherwise two blended entries determine the rule: 1/divisor is linear in the
    frequency there, and scaling the context and both factors by one number changes nothing, so the context can be chosen.
    """
    plain = [rope_theta ** (-i / len(divisors)) for i in range(len(divisors))]
    factor = round(max(divisors), 6)
    if factor <= 1.0:
        return None
    candidates = [RopeScaling(factor, _LOW, _HIGH, _ORIGINAL)]
    blended = [(f, d) for f, d in zip(plain, divisors, strict=True) if d * (1 - _TOLERANCE) > 1.0 and d * (1 + _TOLERANCE) < factor]
    if len(blended) >= 2:
        (f1, s1), (f2, s2) = ((f, (1 / d - 1 / factor) / (1 - 1 / factor)) for f, d in (blended[0], blended[-1]))
        span = _ORIGINAL / (2 * math.pi) * (f1 - f2) / (s1 - s2)  # high_freq_factor - low_freq_factor
        low = _ORIGINAL * f2 / (2 * math.pi) - s2 * span
        candidates.append(RopeScaling(factor, low, low + span, _ORIGINAL))
    for scaling in candidates:
        table = _divisors(plain, scaling)
        if all(math.isclose(ours, theirs, rel_tol=_TOLERANCE) for ours, theirs in zip(table, divisors, strict=True)):
            return scaling
    return None
