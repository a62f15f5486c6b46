"""Figures from samples: latencies from the due time, tokens per second of a block, promises, counts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.spec.slo import Slo
from loadtest.counts import client_counts, outcome_counts
from loadtest.memory_watch import growth
from loadtest.sample import Sample, read, write
from loadtest.summary import Arm, checks, ratio, tokens_per_second
from loadtest.timetable import PLAIN, SERVED, SPECULATIVE, Block

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
KEYS = {
    "block": 1, "arm": SERVED, "key": "0/1/0/0", "kind": "chat", "protocol": "grpc", "tenant": "search", "fault": None, "outcome": "done",
    "error": None, "due": 1.0, "started": 1.0, "first": 1.2, "last": 2.2, "longest_gap": 0.1, "prompt_tokens": 20, "cached_tokens": 16,
    "tokens": 11, "rounds": 4, "drafted": 16, "accepted": 8, "optimisation": "speculative", "decode_seconds": 1.0, "known": True,
}  # fmt: skip


def sample(**changed: object) -> Sample:
    return Sample(**{**KEYS, **changed})


def arm(*samples: Sample, seconds: float = 10.0) -> Arm:
    return Arm.of(SERVED, samples, [Block(1, SERVED, seconds, 1)])


def test_latencies_count_from_when_the_request_was_due() -> None:
    late = sample(due=1.0, started=4.0, first=4.5, last=5.5)
    assert (late.ttft, late.e2e) == (3.5, 4.5)
    assert late.inter_token == pytest.approx(0.1)
    assert arm(late).late_starts.p50 == pytest.approx(3000)


def test_an_answer_in_one_piece_has_only_an_end() -> None:
    whole = arm(sample(protocol="generate", first=None))
    assert whole.ttft.p50 is None
    assert whole.inter_token.p50 is None
    assert whole.e2e.p50 == pytest.approx(1200)


def test_acceptance_is_weighted_by_tokens_and_its_length_has_the_bonus() -> None:
    both = arm(sample(), sample(drafted=4, accepted=0, rounds=1))
    assert both.acceptance_rate == pytest.approx(8 / 20)
    assert both.acceptance_length == pytest.approx(1 + 8 / 5)
    assert arm(sample(drafted=0, accepted=0, rounds=0)).acceptance_rate is None


def test_an_answer_that_outlasts_its_block_counts_with_the_part_inside() -> None:
    block = Block(1, SERVED, 10.0, 1)
    assert tokens_per_second([sample(first=8.0, last=12.0, tokens=40)], block) == pytest.approx(40 * 0.5 / 10)
    assert tokens_per_second([sample(first=11.0, last=12.0)], block) == 0
    assert tokens_per_second([sample(first=None, last=12.0, decode_seconds=4.0, tokens=40)], block) == pytest.approx(2.0)


def test_the_ratio_is_the_median_over_pairs() -> None:
    blocks = [Block(n, name, 10.0, pair) for n, name, pair in ((1, PLAIN, 1), (2, SPECULATIVE, 1), (3, SPECULATIVE, 2), (4, PLAIN, 2))]
    tokens = {1: 100, 2: 200, 3: 300, 4: 100}
    samples = [sample(block=number, tokens=count) for number, count in tokens.items()]
    assert ratio(samples, blocks) == pytest.approx(2.5)
    assert ratio(samples, [Block(1, SERVED, 10.0, 1)]) is None


def test_a_broken_promise_and_a_missing_measurement_fail_the_check() -> None:
    slo = Slo.model_validate({"ttft_p95": "100ms", "inter_token_p95": "200ms", "e2e_p95": "2s"})
    verdicts = {check.name: check.passed for check in checks(arm(sample()), slo, streams=True)}
    assert verdicts == {"ttft_p95": False, "inter_token_p95": True, "e2e_p95": True, "failures": True}
    nothing = {check.name: check.passed for check in checks(arm(), slo, streams=True)}
    assert not any(nothing.values())


def test_a_refused_good_request_is_a_failure_and_a_refused_broken_one_is_not() -> None:
    counted = arm(
        sample(outcome="refused"), sample(outcome="refused", fault="malformed"), sample(fault="malformed"), sample(outcome="failed")
    )
    assert counted.failures == 3
    assert counted.refused == 1


def test_what_the_clients_count_has_the_shape_that_reconciliation_reads() -> None:
    samples = [sample(), sample(tenant="stranger", outcome="cancelled"), sample(outcome="left", known=False, tokens=0)]
    counts = client_counts(samples, lambda name: name if name == "search" else "other", NOON, NOON)
    assert counts["since"] == "2026-01-31T12:00:00.000+00:00"
    assert counts["tenants"] == {
        "other": {"requests": 1, "input": 4, "cached_input": 16, "output": 11},
        "search": {"requests": 1, "input": 4, "cached_input": 16, "output": 11},
    }
    assert outcome_counts(samples) == {"requests": 3, "done": 1, "cancelled": 1, "left": 1, "refused": 0, "failed": 0, "uncounted": 1}


def test_samples_come_back_from_their_file_without_the_line_a_killed_client_left(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    write([sample(), sample(key="b")], file)
    with file.open("a") as end:
        end.write('{"block": 1, "arm"')
    assert list(read(file)) == [sample(), sample(key="b")]


@given(st.lists(st.integers(1, 1 << 40), min_size=4))
def test_memory_that_stays_does_not_grow_and_memory_that_climbs_does(readings: list[int]) -> None:
    assert growth([readings[0]] * len(readings)) == 0
    climbing = sorted(set(readings))
    if len(climbing) >= 8:
        assert (growth(climbing) or 0) > 0
    assert growth(readings[:3]) is None
