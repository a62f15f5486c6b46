"""The states of speculation, and what a change between them is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    SPECULATING = "speculating"
    PLAIN = "plain"  # no drafts
    PROBING = "probing"  # a few rounds to see whether drafts pay again


class Reason(StrEnum):
    LOW_ACCEPTANCE = "low_acceptance"  # drafts are refused too often
    LOAD = "load"  # the batch has grown, or shrunk: rows of drafts cost what they did not cost before
    COST = "cost"  # steps of draft or target became slower or faster
    OPERATOR = "operator"  # a flag
    PROBE = "probe"  # the cool-down is over
    RECOVERED = "recovered"  # a probe paid


@dataclass(frozen=True)
class Transition:
    """`scope` is the class of sampling it holds for, with the tenant where one has its own; "pipeline" for the operator's."""

    at: float  # seconds, the caller's clock
    scope: str
    old: State
    new: State
    reason: Reason
    draft_tokens: int  # K from now on
    acceptance: float  # chance that the first drafted token is kept, as estimated at this moment
    rounds: int  # rounds with a draft in this scope so far
