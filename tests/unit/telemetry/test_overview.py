"""Two scrapes make rates."""

from __future__ import annotations

import pytest

from builder.spec.slo import Slo
from builder.telemetry.overview import overview
from builder.telemetry.scrape import Scrape, parse


def reading(rounds: int, tokens: int) -> Scrape:
    common = 'model="p",version="1"'
    lines = ["# TYPE tandem_tokens counter"]
    lines += [f'tandem_tokens{{{common},tenant="search",token_type="output",optimisation="speculative"}} {tokens}']
    for name, value in {"num_drafts": rounds, "num_draft_tokens": 4 * rounds, "num_accepted_tokens": 3 * rounds}.items():
        lines += [f"# TYPE tandem_spec_decode_{name} counter", f"tandem_spec_decode_{name}{{{common}}} {value}"]
    lines += ["# TYPE tandem_spec_decode_num_accepted_tokens_per_pos counter"]
    lines += [f'tandem_spec_decode_num_accepted_tokens_per_pos{{{common},position="{p}"}} {rounds // (p + 1)}' for p in range(2)]
    lines += ["# TYPE tandem_state gauge", *(f'tandem_state{{{common},state="{s}"}} {int(s == "probing")}' for s in ("plain", "probing"))]
    lines += ["# TYPE tandem_spec_decode_draft_length gauge", f"tandem_spec_decode_draft_length{{{common}}} 2"]
    lines += ["# TYPE tandem_requests gauge", f'tandem_requests{{{common},state="running"}} 3']
    return parse("\n".join(lines) + "\n")


def test_rates_are_those_between_two_scrapes() -> None:
    seen = overview(reading(100, 1000), reading(200, 1100), 2.0, "p", Slo())
    assert (seen.acceptance_rate, seen.acceptance_length, seen.accepted_by_position) == (0.75, 4.0, (1.0, 0.5))
    assert (seen.output_tokens, seen.requests) == ({"search": 50.0}, {"running": 3.0})
    assert seen.p95 == {"ttft_p95": None, "inter_token_p95": None, "e2e_p95": None}
    assert seen.objectives["e2e_p95"] == 10.0
    assert (seen.state, seen.draft_length) == ("probing", 2)


def test_a_server_that_tells_no_state_has_none() -> None:
    empty = parse("")
    assert (overview(empty, empty, 2.0, "p", Slo()).state, overview(empty, empty, 2.0, "p", Slo()).draft_length) == (None, None)


def test_without_drafts_there_is_no_acceptance() -> None:
    seen = overview(reading(100, 0), reading(100, 0), 2.0, "p", Slo())
    assert (seen.acceptance_rate, seen.acceptance_length, seen.accepted_by_position) == (None, None, ())


def test_a_server_that_started_again_has_done_all_that_it_counts() -> None:
    assert overview(reading(500, 900), reading(10, 30), 1.0, "p", Slo()).output_tokens == {"search": pytest.approx(30)}
