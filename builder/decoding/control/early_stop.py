"""Where drafts end early: what one more drafted token costs now, against what it brings, by class of sampling.

A token costs a draft step and a row of the verify pass, and brings the chance that it is kept. In the same seconds rounds bring
tokens as they are. So drafting on pays while the chance is at least (seconds of a step and a row) / (seconds per token): the marginal
value theorem (Charnov 1976) with measured times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.decoding.control.confidence import ConfidenceCounts
from builder.decoding.control.member import SamplingClass
from builder.decoding.control.round_cost import Costs, Share, seconds_per_token
from builder.decoding.stopping import StopRule


class EarlyStop:
    """`rules` are in force until the next `decide`; a class without one drafts to its limit."""

    def __init__(self, costs: Costs) -> None:
        self.rules: dict[SamplingClass, StopRule] = {}
        self._costs = costs
        self._counts = {sampling: ConfidenceCounts() for sampling in SamplingClass}

    def judged(self, sampling: SamplingClass, confidences: Sequence[float], accepted: int) -> None:
        """A draft with these confidences, of which so many tokens were kept."""
        self._counts[sampling].add(confidences, accepted)

    def decide(self, classes: Mapping[SamplingClass, bool], shares: Sequence[Share], plain_rows: int) -> None:
        """Rules for those of the batch's classes that speculate. One that does not forgets what it has learnt: it returns when the draft,
        or the text, is another."""
        least = least_chance(shares, plain_rows, self._costs)
        self.rules = {}
        for sampling, speculates in classes.items():
            if not speculates:
                self._counts[sampling] = ConfidenceCounts()
            elif least is not None:
                self.rules[sampling] = self._counts[sampling].rule(least)


def least_chance(shares: Sequence[Share], plain_rows: int, costs: Costs) -> float | None:
    """Chance of being kept that a further drafted token must have to be worth its time; None while a cost is not known."""
    drafting = sum(share.sequences for share in shares if share.draft_tokens and not share.copied)
    steps = max((share.draft_tokens for share in shares if not share.copied), default=0)
    whole, per_token = costs.draft_seconds(drafting, steps), seconds_per_token(shares, plain_rows, costs)
    few = plain_rows + sum(share.sequences for share in shares)
    many = few + sum(share.sequences * share.draft_tokens for share in shares)
    with_none, with_all = costs.seconds("target", few), costs.seconds("target", many)
    if not drafting or whole is None or per_token is None or with_none is None or with_all is None:
        return None
    row = max(0.0, with_all - with_none) / (many - few)
    return (whole / steps / drafting + row) / per_token
