"""What the drill of draft drift reads from a server."""

from __future__ import annotations

import pytest

from builder.drills.draft_drift import falls_by_reason, main_reason
from builder.drills.scrape import Metrics

TRANSITIONS = 'tandem_state_transitions{{model="p",version="1",from="{}",to="{}",reason="{}"}} {}'


class Page(Metrics):
    def _text(self) -> str:
        rows = [("speculating", "plain", "cost", 1), ("speculating", "plain", "low_acceptance", 2), ("probing", "plain", "load", 9)]
        return "\n".join(["# TYPE tandem_state_transitions counter", *(TRANSITIONS.format(*row) for row in rows)]) + "\n"


class Nothing(Metrics):
    def _text(self) -> str:
        return "# TYPE tandem_state_transitions counter\n"


@pytest.mark.parametrize(("page", "reason"), [(Page, "low_acceptance"), (Nothing, "none")])
def test_the_reason_is_the_one_most_fall_backs_had_and_none_without_any(page: type[Metrics], reason: str) -> None:
    assert main_reason(falls_by_reason(page("127.0.0.1", 1, "p"))) == reason
