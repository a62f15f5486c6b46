"""How often a drafted token is kept, by how sure the draft was: what its own probability is worth, counted while serving."""

from __future__ import annotations

from collections.abc import Sequence

from builder.decoding.stopping import BINS, StopRule, bin_of

MEMORY = 64.0  # tokens of a bin that its count looks back over
PRIOR_WEIGHT = 4.0  # tokens that the prior counts for: a probability is worth what it says


class ConfidenceCounts:
    """Counts of judged tokens by bin: those with all earlier ones of their draft kept."""

    def __init__(self) -> None:
        self._judged = [0.0] * BINS
        self._kept = [0.0] * BINS

    def add(self, confidences: Sequence[float], accepted: int) -> None:
        """A draft with these confidences, of which so many tokens were kept."""
        for place, confidence in enumerate(confidences[: accepted + 1]):
            found = bin_of(confidence)
            self._judged[found] += 1.0 - self._judged[found] / MEMORY
            self._kept[found] += (accepted > place) - self._kept[found] / MEMORY

    def chances(self) -> tuple[float, ...]:
        """[BINS]: chance that a token of this confidence is kept."""
        return tuple(
            (kept + PRIOR_WEIGHT * (place + 0.5) / BINS) / (judged + PRIOR_WEIGHT)
            for place, (judged, kept) in enumerate(zip(self._judged, self._kept, strict=True))
        )

    def rule(self, least: float) -> StopRule:
        """The next token's own confidence is known only once its step is paid for. Until then it is kept as often as tokens are on
        average: a draft goes on while its hope times that average is `least` or more."""
        average = (sum(self._kept) + PRIOR_WEIGHT) / (sum(self._judged) + PRIOR_WEIGHT)
        return StopRule(self.chances(), least / average)
