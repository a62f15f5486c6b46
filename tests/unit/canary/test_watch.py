"""The watch's decisions, look by look, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from builder.canary.comparison import BROKEN, KEPT, Comparison
from builder.canary.watch import PROMOTE, TAKE_BACK, Look, Watch
from builder.errors import ServeError
from builder.spec.versions import Canary as Limits
from builder.telemetry.scrape import Scrape, parse


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def play(
    clock: Clock,
    rates: dict[str, float],
    *,
    success: str = KEPT,
    still_live: Callable[[], bool] = lambda: True,
    silent_after: float = 1e9,
    **limits: Any,
) -> list[Look]:
    """Requests a second of `version finish_reason`, until the decision."""

    def read() -> tuple[Sequence[Scrape], Sequence[Scrape]]:
        if clock.now > silent_after:
            raise ServeError("gone")
        lines = ["# TYPE tandem_finished_requests counter"]
        for name, rate in rates.items():
            version, reason = name.split()
            series = f'tandem_finished_requests{{model="p",version="{version}",finish_reason="{reason}"}}'
            lines.append(f"{series} {round(rate * clock.now)}")
        scraped = parse("\n".join(lines) + "\n")
        return [scraped], [scraped]

    looks: list[Look] = []
    spec = Limits.model_validate({"duration": "60s", "min_requests": 50} | limits)
    probes = Comparison("success drop", success, 1.0, 1.0, spec.max_success_drop)
    Watch("p", 1, 2, spec, probes, read, still_live, clock, clock.sleep).run(looks.append)
    return looks


def test_a_version_that_is_as_good_is_promoted_when_its_time_is_over() -> None:
    clock = Clock()
    looks = play(clock, {"1 stop": 9, "2 stop": 1})
    assert looks[-1].decision == PROMOTE
    assert clock.now == 60
    assert {look.decision for look in looks[:-1]} == {None}
    assert looks[-1].to_json()["tried"]["requests"] == 60


def test_a_version_that_fails_is_taken_back_within_seconds_with_its_numbers() -> None:
    clock = Clock()
    last = play(clock, {"1 stop": 9, "2 error": 1})[-1]
    assert last.decision == TAKE_BACK
    assert clock.now < 10
    assert last.why.startswith("error increase 1 against 0 (limit 0.01)")


def test_wrong_answers_to_the_probes_take_it_back() -> None:
    assert play(Clock(), {"1 stop": 9, "2 stop": 1}, success=BROKEN)[-1].why.startswith("success drop")


def test_too_few_requests_prove_nothing() -> None:
    last = play(Clock(), {"1 stop": 9, "2 stop": 0.5})[-1]
    assert (last.decision, last.why) == (TAKE_BACK, "one version had 30 requests in 60 s, fewer than min_requests 50")


def test_a_version_that_is_compared_with_one_that_is_live_no_more_is_taken_back() -> None:
    clock = Clock()
    last = play(clock, {"1 stop": 9, "2 stop": 1}, still_live=lambda: clock.now < 30)[-1]
    assert (last.decision, clock.now) == (TAKE_BACK, 30)
    assert last.why.startswith("version 1 is not live any more")


def test_servers_that_fall_silent_take_it_back() -> None:
    last = play(Clock(), {"1 stop": 9, "2 stop": 1}, silent_after=5)[-1]
    assert (last.decision, last.why) == (TAKE_BACK, "the servers do not answer")


def test_a_look_that_fails_now_and_then_does_not_matter() -> None:
    clock = Clock()
    assert play(clock, {"1 stop": 9, "2 stop": 1}, silent_after=52)[-1].decision == PROMOTE
