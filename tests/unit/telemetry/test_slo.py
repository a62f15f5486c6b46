"""Percentiles and objectives from scraped histograms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import ServeError
from builder.spec.slo import Slo
from builder.telemetry.quantile import count_above, difference, quantile
from builder.telemetry.scrape import parse, scrape
from builder.telemetry.slo import SloWindow

BOUNDS = (0.1, 0.2, 0.4, 0.8, math.inf)


def cumulative(values: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


VALUES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=200)


@given(values=VALUES)
def test_a_percentile_is_right_within_its_bucket(values: list[float]) -> None:
    exact = sorted(values)[math.ceil(0.95 * len(values)) - 1]
    estimate = quantile(0.95, cumulative(values))
    assert estimate is not None
    upper = min(bound for bound in BOUNDS if exact <= bound)
    lower = max((bound for bound in (0.0, *BOUNDS) if bound < exact), default=0.0)
    assert lower <= estimate <= min(upper, 0.8)


@given(values=VALUES, more=VALUES, at=st.floats(0.01, 1.0))
def test_what_lies_above_a_value_only_grows(values: list[float], more: list[float], at: float) -> None:
    assert 0 <= count_above(at, cumulative(values)) <= count_above(at, cumulative(values + more)) + 1e-9


def test_what_lies_above_a_bound_is_exact() -> None:
    assert count_above(0.2, cumulative([0.05, 0.15, 0.3, 0.9])) == 2


def test_without_observations_there_is_no_percentile() -> None:
    assert quantile(0.95, {}) is None
    assert quantile(0.95, cumulative([])) is None


def test_a_restarted_server_counts_from_zero() -> None:
    assert difference(cumulative([0.3]), cumulative([0.3, 0.3])) == cumulative([0.3])


def reading(seconds: list[float]) -> str:
    lines = ["# TYPE tandem_time_to_first_token_seconds histogram"]
    for bound, count in cumulative(seconds).items():
        le = "+Inf" if math.isinf(bound) else bound
        lines.append(f'tandem_time_to_first_token_seconds_bucket{{model="p",version="1",le="{le}"}} {count}')
    return "\n".join(lines) + "\n"


def test_the_state_is_that_of_the_window_and_not_of_the_servers_life() -> None:
    window = SloWindow(Slo.model_validate({"ttft_p95": "250ms"}), "p", window=300)
    slow = [0.7] * 100
    assert window.update(parse(reading(slow)), now=0)["ttft_p95"].met is False
    later = window.update(parse(reading(slow + [0.05] * 100)), now=150)["ttft_p95"]
    assert (later.met, later.observed, later.slow) == (True, 200, 100)
    quiet = window.update(parse(reading(slow + [0.05] * 100)), now=500)["ttft_p95"]
    assert (quiet.p95, quiet.met) == (None, None)


def test_metrics_of_other_pipelines_are_left_out() -> None:
    assert SloWindow(Slo(), "q").update(parse(reading([0.7])), now=0)["ttft_p95"].p95 is None


@pytest.mark.parametrize("url", ["https://127.0.0.1/metrics", "file:///etc/passwd", "127.0.0.1:8002"])
def test_only_http_addresses_are_scraped(url: str) -> None:
    with pytest.raises(ServeError, match="not an http address"):
        scrape(url)


def test_counters_keep_the_names_of_the_catalogue() -> None:
    scraped = parse('# TYPE tandem_tokens counter\ntandem_tokens{model="p",tenant="a"} 3\ntandem_tokens{model="p",tenant="b"} 4\n')
    assert scraped.total("tandem_tokens", model="p") == 7
    assert scraped.total("tandem_tokens", tenant="b") == 4
