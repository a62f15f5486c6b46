from __future__ import annotations

import pytest

from builder.quality.baseline import AgainstLive
from builder.quality.distribution import Distribution, PositionTest
from builder.quality.drift import Drift
from builder.quality.gates import Gate, distribution_gate, drift_gate, exit_gate, identity_gate, live_gate, overall, success_gate
from builder.quality.statistics import Interval
from builder.spec.quality import Quality

LIMITS = Quality()


def a_test(adjusted: float) -> PositionTest:
    return PositionTest(1.0, 1.0, "facts/a@3", 1, 300, adjusted, adjusted, 0.1, 0.1)


@pytest.mark.parametrize(
    ("identity", "rounds", "speculates", "verdict"),
    [(1.0, 9, True, "passed"), (0.99, 9, True, "failed"), (1.0, 0, True, "inconclusive"), (1.0, 0, False, "not applicable")],
)
def test_identity_proves_nothing_without_drafts(identity: float, rounds: int, speculates: bool, verdict: str) -> None:
    assert identity_gate(identity, 40, rounds, speculates, LIMITS).verdict == verdict


@pytest.mark.parametrize(
    ("differing", "early_exit", "verdict"),
    [
        (Interval(0.01, 0.005, 0.015), True, "passed"),
        (Interval(0.03, 0.015, 0.045), True, "passed"),  # above, but chance explains it
        (Interval(0.05, 0.021, 0.08), True, "failed"),
        (Interval(0.0, 0.0, 0.0), False, "not applicable"),
    ],
)
def test_early_exit_may_differ_by_no_more_than_the_bound_and_chance(differing: Interval, early_exit: bool, verdict: str) -> None:
    gate = exit_gate(differing, early_exit, LIMITS)
    assert (gate.verdict, gate.limit) == (verdict, 0.02)


@pytest.mark.parametrize(
    ("adjusted", "control", "rounds", "verdict"),
    [(0.5, 1e-9, 5, "passed"), (0.5, 0.5, 5, "inconclusive"), (0.5, 1e-9, 0, "inconclusive"), (1e-4, 1e-9, 5, "failed")],
)
def test_the_distribution_passes_only_when_the_broken_rule_was_caught(adjusted: float, control: float, rounds: int, verdict: str) -> None:
    found = Distribution((a_test(adjusted),), (a_test(control),), rounds)
    assert distribution_gate(found, LIMITS).verdict == verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (Interval(0.0, 0.0, 0.0), "passed"),
        (Interval(-0.2, -0.3, -0.1), "failed"),
        (Interval(-0.2, -0.45, 0.02), "passed"),  # may be chance
        (Interval(-0.04, -0.05, -0.03), "passed"),  # within the limit
        (Interval(0.3, 0.2, 0.4), "passed"),  # better is no reason to refuse
    ],
)
def test_a_loss_fails_when_it_is_beyond_the_limit_and_no_chance(change: Interval, verdict: str) -> None:
    assert success_gate(change, 0.6, 0.6 + change.mean, LIMITS).verdict == verdict
    assert live_gate(AgainstLive(3, 40, 0.6, 0.6 + change.mean, change), LIMITS).verdict == verdict


def test_without_a_live_version_there_is_nothing_to_compare_with() -> None:
    assert live_gate(None, LIMITS).verdict == "not applicable"


def test_a_drift_names_what_drifted() -> None:
    length = Drift("length", "relative", 40.0, 60.0, Interval(0.5, 0.3, 0.7))
    refusals = Drift("refusal_rate", "absolute", 0.5, 0.55, Interval(0.05, 0.01, 0.09))
    gate = drift_gate([length, refusals], LIMITS)
    assert (gate.verdict, gate.says) == ("failed", "drifted: length")
    assert drift_gate([refusals], LIMITS).verdict == "passed"


def test_one_failure_outweighs_what_is_inconclusive() -> None:
    def gate(verdict: str) -> Gate:
        return Gate("g", verdict, None, None, "")

    assert overall([gate("passed"), gate("inconclusive"), gate("failed")]) == "failed"
    assert overall([gate("passed"), gate("inconclusive")]) == "inconclusive"
    assert overall([gate("passed"), gate("not applicable")]) == "passed"
