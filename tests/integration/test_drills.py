"""The drills in their short form, on a real tritonserver with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.drills.draft_drift import drill_draft_drift
from builder.drills.kill_switch import drill_kill_switch
from builder.repository.event_log import EventLog
from builder.repository.flag_store import FlagStore
from builder.repository.versions import newest
from builder.serve.triton import Triton


def test_the_kill_switch_stops_drafts_within_a_second_and_fails_no_request(built_repository: Path) -> None:
    result = drill_kill_switch(newest(built_repository, "tiny"), quick=True)
    assert result.passed, result.to_json()
    assert result.requests >= 40
    assert FlagStore(built_repository, "tiny").history() == []  # played on a copy


@pytest.mark.slow  # compares speeds of a few seconds each
def test_a_bad_draft_is_left_and_a_good_one_is_taken_up_again(built_repository: Path) -> None:
    """Drafts of a model this small may not pay on a busy machine: then the drill says so, and that is its answer."""
    result = drill_draft_drift(newest(built_repository, "tiny"), quick=True)
    found = {check.name: check.passed for check in result.checks}
    assert result.failed_requests == 0
    if found["speculates before"]:
        assert found["says why"], result.to_json()
        assert result.seconds_to_effect is not None
    else:
        assert not result.passed


def test_loads_and_flags_are_in_the_event_log(tiny_server: Triton) -> None:
    events = EventLog(tiny_server.repository, "tiny").read()
    assert {"load", "flags"} <= {event["event"] for event in events}
    assert not any("text_input" in event for event in events)
