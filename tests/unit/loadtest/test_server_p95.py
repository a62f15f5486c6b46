"""The p95 of histograms beside that of clients."""

from __future__ import annotations

from builder.telemetry.catalogue import FIRST_TOKEN, INTER_TOKEN_LATENCY, REQUEST_LATENCY, Metric
from builder.telemetry.scrape import Scrape, parse
from loadtest.server_p95 import compare
from tests.unit.loadtest.test_summary import sample


def page(*observed: float, metrics: tuple[Metric, ...] = (FIRST_TOKEN, REQUEST_LATENCY)) -> Scrape:
    lines = []
    for metric in metrics:
        lines.append(f"# TYPE {metric.name} histogram")
        for bound in (*metric.buckets, float("inf")):
            below = sum(value <= bound for value in observed)
            lines.append(f'{metric.name}_bucket{{model="tiny",version="1",le="{bound if bound < 1e9 else "+Inf"}"}} {below}')
    return parse("\n".join(lines) + "\n")


SAMPLES = [sample(due=0.0, started=0.2, first=0.2 + 0.03, last=0.2 + 1.5) for _ in range(20)]


def test_what_was_observed_before_the_load_does_not_count_and_waiting_to_be_sent_neither() -> None:
    first, whole = compare(page(9.0, 9.0), page(9.0, 9.0, *[0.03] * 20), "tiny", SAMPLES)
    assert (first.name, first.buckets_apart, first.agrees) == ("ttft_p95", 0, True)
    assert 0.029 < first.client < 0.031 and 0.02 < first.server <= 0.04
    assert (whole.name, whole.agrees) == ("e2e_p95", False), "1.5 s and 0.03 s are buckets apart"


def test_one_bucket_apart_agrees_and_two_do_not() -> None:
    near, far = (compare(page(), page(*[told] * 20), "tiny", SAMPLES)[0] for told in (0.05, 0.07))
    assert (near.buckets_apart, near.agrees, far.buckets_apart, far.agrees) == (1, True, 2, False)


def test_time_between_tokens_is_compared_by_the_mean_of_an_answer() -> None:
    """1.47 s for the tokens after the first of each sample."""
    tokens = SAMPLES[0].tokens
    (found,) = compare(page(), page(*[1.47 / (tokens - 1)] * 20, metrics=(INTER_TOKEN_LATENCY,)), "tiny", SAMPLES)
    assert (found.name, found.buckets_apart) == ("inter_token_p95", 0)
    assert 0.9 < found.client / (1.47 / (tokens - 1)) < 1.1


def test_nothing_is_compared_that_nobody_observed() -> None:
    assert compare(page(), page(), "tiny", SAMPLES) == ()
    assert compare(page(), page(0.03), "tiny", []) == ()
