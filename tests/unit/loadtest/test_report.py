"""The report of a load test, and the clients' own Prometheus metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.spec.slo import Slo
from loadtest.ask import Target
from loadtest.files import render
from loadtest.live import LiveMetrics
from loadtest.plan import Plan
from loadtest.report import Report
from loadtest.server_p95 import ServerP95
from loadtest.timetable import PLAIN, SPECULATIVE, blocks
from loadtest.workload import Workload
from tests.unit.loadtest.test_summary import NOON, sample

WORKLOAD = Workload.model_validate({"description": "d", "prompts": {"chat": 1}, "tenants": {"search": 1}})
PLAN = Plan(WORKLOAD, Target("h:1", "h:2", "tiny"), users=2, blocks=tuple(blocks(WORKLOAD, 0.5, ab=True)))
SAMPLES = (
    sample(block=1, arm=PLAIN, rounds=0, drafted=0, accepted=0),
    sample(block=2, arm=SPECULATIVE, last=1.7),
    sample(block=2, arm=SPECULATIVE, outcome="failed", error="<b>gone</b>", known=False, tokens=0),
)
REPORT = Report("tiny", "chat", PLAN, SAMPLES, Slo(), lambda name: name, NOON, NOON)


def test_the_json_has_both_arms_their_ratio_and_the_promises() -> None:
    document = REPORT.to_json()
    assert set(document["arms"]) == {PLAIN, SPECULATIVE}
    for arm in document["arms"].values():
        assert {"requests", "failures", "tok_s", "acceptance_rate", "acceptance_length"} < set(arm)
        assert all(set(arm[name]) == {"p50", "p95", "p99"} for name in ("ttft_ms", "inter_token_ms", "e2e_ms"))
    assert document["ratio"] == pytest.approx(1.0)
    assert document["slo"]["arm"] == SPECULATIVE
    assert not document["slo"]["passed"]  # half of its requests failed
    assert document["counts"]["tenants"]["search"]["output"] == 22
    assert document["errors"] == {"<b>gone</b>": 1}


def test_the_page_stands_alone_and_escapes_what_servers_say() -> None:
    page = render(REPORT)
    assert page.count("<svg") == 5
    assert "&lt;b&gt;gone&lt;/b&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_servers_p95_stands_beside_the_clients() -> None:
    told = replace(REPORT, server_p95=(ServerP95("ttft_p95", 0.05, 0.03, 1), ServerP95("e2e_p95", 2.0, 0.5, 3)))
    assert [found["agrees"] for found in told.to_json()["server_p95"]] == [True, False]
    page = render(told)
    assert "within one bucket" in page and "3 buckets apart" in page
    assert "histograms" not in render(REPORT)


def test_a_report_without_any_answer_can_still_be_written() -> None:
    empty = replace(REPORT, samples=())
    assert not empty.passed
    assert "<svg" in render(empty)


def test_a_plan_survives_its_way_to_the_client_process() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_the_clients_own_metrics_add_up() -> None:
    live = LiveMetrics()
    live.add(SAMPLES)
    value = live.registry.get_sample_value
    assert value("tandem_loadtest_requests_total", {"arm": SPECULATIVE, "protocol": "grpc", "outcome": "failed"}) == 1
    assert value("tandem_loadtest_tokens_total", {"arm": PLAIN, "tenant": "search"}) == 11
    assert value("tandem_loadtest_e2e_request_latency_seconds_count", {"arm": SPECULATIVE}) == 1
