"""The share of a rollout: about what was asked for, and always the same side for the same id."""

from __future__ import annotations

import pytest

from builder.repository.models.rollout import CONTROL, SPECULATION, arm
from builder.spec.speculation import Speculation


@pytest.mark.parametrize("percent", [0, 10, 50])
def test_the_share_is_what_was_asked_for(percent: int) -> None:
    spec = Speculation(rollout=percent)
    sides = [arm(spec, f"request-{number}", "other") for number in range(4000)]
    assert sides.count(SPECULATION) / len(sides) == pytest.approx(percent / 100, abs=0.02)
    assert set(sides) <= {SPECULATION, CONTROL}


def test_a_larger_share_keeps_those_of_a_smaller_one() -> None:
    ids = [f"request-{number}" for number in range(500)]
    ten, twenty = ({name for name in ids if arm(Speculation(rollout=share), name, "x") == SPECULATION} for share in (10, 20))
    assert ten < twenty


def test_by_tenant_all_requests_of_a_tenant_are_on_one_side() -> None:
    spec = Speculation(rollout=50, rollout_by="tenant")
    for tenant in ("search", "support", "other"):
        assert len({arm(spec, f"request-{number}", tenant) for number in range(50)}) == 1


def test_without_a_rollout_there_are_no_sides() -> None:
    assert arm(Speculation(), "r", "other") == ""
