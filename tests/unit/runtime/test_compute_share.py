"""Who pays for a step: the shares add up, and nobody pays for another's draft."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding.proposers import Draft
from builder.runtime.answer import Tally
from builder.runtime.compute_share import share_pass_time


def sequence() -> Any:
    return SimpleNamespace(answer=SimpleNamespace(tally=Tally()))


def seconds(items: list[tuple[Any, Any]]) -> list[float]:
    return [item.answer.tally.compute_seconds for item, _ in items]


@given(
    drafted=st.lists(st.integers(0, 8), max_size=6),
    chunks=st.lists(st.integers(1, 300), max_size=4),
    draft_seconds=st.floats(0, 10),
    target_seconds=st.floats(0, 10),
)
def test_the_shares_add_up_to_the_time_of_the_step(
    drafted: list[int], chunks: list[int], draft_seconds: float, target_seconds: float
) -> None:
    groups = [(sequence(), Draft([1] * count)) for count in drafted]
    prefills = [(sequence(), count) for count in chunks]
    share_pass_time(groups, prefills, draft_seconds, target_seconds)
    expected = draft_seconds + target_seconds if groups or prefills else 0.0
    assert sum(seconds(groups) + seconds(prefills)) == pytest.approx(expected)


def test_drafts_are_paid_by_those_that_drafted_and_passes_by_rows() -> None:
    groups, chunks = [(sequence(), Draft([1, 2, 3, 4])), (sequence(), Draft())], [(sequence(), 10)]
    share_pass_time(groups, chunks, draft_seconds=8.0, target_seconds=16.0)
    assert seconds(groups) == [5.0 + 8.0, 1.0]
    assert seconds(chunks) == [10.0]
