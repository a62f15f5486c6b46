"""What the loop says a pass costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.runtime.step_costs import MEMORY, StepCosts, bucket


def test_nothing_is_known_before_the_first_pass_of_a_kind() -> None:
    costs = StepCosts()
    costs.record("target", 4, 0.01)
    assert costs.seconds("mixed", 4) is None
    assert costs.draft_seconds(4, 1) is None


def test_a_count_between_two_measured_ones_lies_on_the_line_between_them() -> None:
    costs = StepCosts()
    costs.record("target", 4, 0.010)
    costs.record("target", 12, 0.030)
    assert costs.seconds("target", 4) == pytest.approx(0.010)
    assert costs.seconds("target", 6) == pytest.approx(0.015)
    assert costs.seconds("target", 12) == pytest.approx(0.030)


def test_beyond_the_largest_count_the_last_line_goes_on_but_never_falls() -> None:
    rising, falling = StepCosts(), StepCosts()
    for rows, seconds in ((8, 0.010), (16, 0.020)):
        rising.record("target", rows, seconds)
        falling.record("target", rows, 0.030 - seconds)
    assert rising.seconds("target", 24) == pytest.approx(0.030)
    assert rising.seconds("target", 1) == pytest.approx(0.010)
    assert falling.seconds("target", 24) == pytest.approx(0.010)


def test_an_old_cost_is_forgotten() -> None:
    costs = StepCosts()
    for seconds in [0.010] * MEMORY + [0.020] * 6 * MEMORY:
        costs.record("target", 2, seconds)
    assert costs.seconds("target", 2) == pytest.approx(0.020, rel=0.01)


def test_drafts_of_few_and_of_many_steps_have_averages_of_their_own() -> None:
    costs = StepCosts()
    costs.record_draft(1, 1, 0.005)
    costs.record_draft(1, 3, 0.008)
    assert costs.draft_seconds(1, 0) == 0.0
    assert costs.draft_seconds(1, 1) == pytest.approx(0.005)
    assert costs.draft_seconds(1, 3) == pytest.approx(0.008)
    assert costs.draft_seconds(1, 6) == pytest.approx(0.016)  # never seen: as the nearest, by the step


def test_drafts_not_in_use_become_slower_with_those_that_are() -> None:
    costs = StepCosts()
    for _ in range(MEMORY):
        costs.record_draft(1, 4, 0.010)
        costs.record_draft(1, 2, 0.006)
    for _ in range(6 * MEMORY):
        costs.record_draft(1, 2, 0.012)
    assert costs.draft_seconds(1, 2) == pytest.approx(0.012, rel=0.01)
    assert costs.draft_seconds(1, 4) == pytest.approx(0.020, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(1e-4, 1e-1)), min_size=1, max_size=40), st.integers(1, 600))
def test_an_estimate_within_the_measured_counts_lies_within_the_measured_seconds(passes: list[tuple[int, float]], rows: int) -> None:
    costs = StepCosts()
    for count, seconds in passes:
        costs.record("target", count, seconds)
    estimate = costs.seconds("target", rows)
    assert estimate is not None
    if rows <= max(count for count, _ in passes):
        assert estimate <= max(seconds for _, seconds in passes) * (1 + 1e-9)
    assert estimate >= min(seconds for _, seconds in passes) * (1 - 1e-9)


@given(st.integers(1, 4096))
def test_rows_of_one_bucket_differ_by_an_eighth_at_most(rows: int) -> None:
    assert rows <= bucket(rows) <= rows * 1.125


def test_the_rows_within_a_time_are_found_on_the_line_between_what_was_measured() -> None:
    costs = StepCosts()
    assert costs.rows_within("target", 1.0, 512) == 512
    costs.record("target", 1, 0.010)
    costs.record("target", 101, 0.110)
    assert costs.rows_within("target", 0.050, 512) == 41
    assert costs.rows_within("target", 0.001, 512) == 1
    assert costs.rows_within("target", 9.0, 64) == 64


def test_the_span_is_of_the_fewest_and_the_most_rows() -> None:
    costs = StepCosts()
    assert costs.span("target") is None
    for rows in (7, 3, 12):
        costs.record("target", rows, 0.01)
    assert costs.span("target") == (3, 12)
    assert costs.span("mixed") is None
