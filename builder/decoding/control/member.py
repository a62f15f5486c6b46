"""A decoding sequence as the control sees it, and the classes of sampling, whose acceptance differs (M12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from builder.decoding.params import SamplingParams

COOL = 0.5  # temperatures up to here still agree with the draft's favourite most of the time


class SamplingClass(StrEnum):
    GREEDY = "greedy"
    COOL = "cool"
    HOT = "hot"


def sampling_class(params: SamplingParams) -> SamplingClass:
    if params.greedy:
        return SamplingClass.GREEDY
    return SamplingClass.COOL if params.temperature <= COOL else SamplingClass.HOT


@dataclass(frozen=True)
class Member:
    """A sequence that may be drafted for. `backlog` counts tokens that its draft model has to run first (its cache is stale). `copies`: its
    text repeats itself here, so that a draft may be copied from it instead, which takes no step."""

    sampling: SamplingClass
    tenant: str
    backlog: int = 0
    copies: bool = False
