"""Which differences between two versions break a limit, and which may be chance."""

from __future__ import annotations

import pytest

from builder.canary.arm import Arm, read_arm
from builder.canary.comparison import BROKEN, KEPT, OPEN, Comparison, compare, compare_success
from builder.spec.versions import Canary
from builder.telemetry.scrape import parse

LIMITS = Canary()


def arm(answered: int = 100, failed: int = 0, slow: int = 0, drafted: int = 0, accepted: int = 0) -> Arm:
    """`slow` of the answers took between 2 and 4 s, the others less than 1 s."""
    seconds = {1.0: answered - slow, 2.0: answered - slow, 4.0: answered, float("inf"): answered}
    return Arm(answered, failed, drafted, accepted, seconds)


def verdict(name: str, stable: Arm, tried: Arm) -> str:
    found: dict[str, Comparison] = {comparison.name: comparison for comparison in compare(stable, tried, LIMITS)}
    return found[name].verdict


@pytest.mark.parametrize(
    ("failed", "of", "expected"),
    [(0, 20, KEPT), (1, 20, KEPT), (10, 20, BROKEN), (3, 3, BROKEN), (2, 200, KEPT)],
)
def test_errors_count_when_chance_does_not_explain_them(failed: int, of: int, expected: str) -> None:
    assert verdict("error increase", arm(answered=1000), arm(answered=of - failed, failed=failed)) == expected


def test_errors_that_the_live_version_has_as_well_are_not_held_against_the_tried_one() -> None:
    assert verdict("error increase", arm(answered=500, failed=500), arm(answered=50, failed=50)) == KEPT


@pytest.mark.parametrize(("slow", "of", "expected"), [(0, 30, KEPT), (2, 30, KEPT), (15, 30, BROKEN), (2, 4, KEPT)])
def test_a_slow_tail_breaks_the_limit_once_it_is_no_chance(slow: int, of: int, expected: str) -> None:
    assert verdict("p95 ratio", arm(), arm(answered=of, slow=slow)) == expected


def test_three_slow_answers_of_the_live_version_are_too_few_to_compare_with() -> None:
    assert verdict("p95 ratio", arm(answered=19), arm(answered=30, slow=30)) == OPEN
    assert verdict("p95 ratio", arm(answered=20), arm(answered=30, slow=30)) == BROKEN


def test_acceptance_is_compared_once_both_have_drafted_enough() -> None:
    good, bad, few = arm(drafted=1000, accepted=700), arm(drafted=1000, accepted=500), arm(drafted=499, accepted=0)
    assert verdict("acceptance drop", good, bad) == BROKEN
    assert verdict("acceptance drop", bad, good) == KEPT
    assert verdict("acceptance drop", good, arm(drafted=1000, accepted=610)) == KEPT
    assert verdict("acceptance drop", good, few) == OPEN
    assert verdict("acceptance drop", good, arm()) == OPEN


def test_success_is_compared_prompt_by_prompt() -> None:
    right, wrong = [True] * 30, [False] * 30
    assert compare_success(right, wrong, 0.05).verdict == BROKEN
    assert compare_success(right, right, 0.05).verdict == KEPT
    assert compare_success(wrong, right, 0.05).verdict == KEPT
    assert compare_success(right, [False, *right[1:]], 0.05).verdict == KEPT  # one of thirty
    assert compare_success([], [], 0.05).verdict == KEPT


def test_an_arm_is_what_its_version_added_on_all_servers_since_the_start() -> None:
    def scraped(answered: int, accepted: int) -> str:
        return f"""\
# TYPE tandem_finished_requests counter
tandem_finished_requests{{model="p",version="2",tenant="a",optimisation="plain",finish_reason="stop"}} {answered}
tandem_finished_requests{{model="p",version="2",tenant="b",optimisation="plain",finish_reason="cancelled"}} 7
tandem_finished_requests{{model="p",version="1",tenant="a",optimisation="plain",finish_reason="length"}} 900
# TYPE tandem_e2e_request_latency_seconds histogram
tandem_e2e_request_latency_seconds_bucket{{model="p",version="2",le="1"}} {answered}
tandem_e2e_request_latency_seconds_bucket{{model="p",version="2",le="+Inf"}} {answered}
# TYPE tandem_spec_decode_num_draft_tokens counter
tandem_spec_decode_num_draft_tokens{{model="p",version="2"}} {10 * answered}
# TYPE tandem_spec_decode_num_accepted_tokens counter
tandem_spec_decode_num_accepted_tokens{{model="p",version="2"}} {accepted}
"""

    first = read_arm([parse(scraped(10, 50)), parse(scraped(0, 0))], "p", 2)
    later = read_arm([parse(scraped(30, 200)), parse(scraped(20, 50))], "p", 2)
    added = later.since(first)
    assert (added.requests, added.failed, added.acceptance) == (40, 0, 0.5)
    assert added.p95 == pytest.approx(0.95)
    assert first.since(later).answered == 10  # both servers started again


def test_errors_and_timeouts_are_failures() -> None:
    series = 'tandem_finished_requests{{model="p",version="2",tenant="a",optimisation="plain",finish_reason="{0}"}} {1}'
    lines = [
        series.format(reason, count) for reason, count in (("stop", 1), ("length", 2), ("error", 4), ("timeout", 8), ("cancelled", 16))
    ]
    read = read_arm([parse("# TYPE tandem_finished_requests counter\n" + "\n".join(lines) + "\n")], "p", 2)
    assert (read.answered, read.failed) == (3, 12)
