"""Who used a step's time: the drafts' time by tokens drafted, the target pass's by rows."""

from __future__ import annotations

from collections.abc import Sequence as Items

from builder.decoding.proposers import Draft
from builder.runtime.sequence import Sequence


def share_pass_time(
    groups: Items[tuple[Sequence, Draft]], chunks: Items[tuple[Sequence, int]], draft_seconds: float, target_seconds: float
) -> None:
    """Add to each tally its share; the shares add up to the time of the step.

    A sequence without a draft pays for no draft. A verify group has K + 1 rows, a plain row one, a prefill chunk one a token.
    Drafting that gave nobody a token is paid like the target pass.
    """
    drafted = sum(len(draft) for _, draft in groups)
    if not drafted:
        draft_seconds, target_seconds = 0.0, target_seconds + draft_seconds
    rows = drafted + len(groups) + sum(count for _, count in chunks)
    a_row, a_drafted_token = target_seconds / max(1, rows), draft_seconds / max(1, drafted)
    for sequence, draft in groups:
        sequence.answer.tally.compute_seconds += (1 + len(draft)) * a_row + len(draft) * a_drafted_token
    for sequence, count in chunks:
        sequence.answer.tally.compute_seconds += count * a_row
