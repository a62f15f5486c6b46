"""Workloads, the requests drawn from them, and when they are due."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import SpecError
from loadtest.ask import Target, draw
from loadtest.timetable import PLAIN, SPECULATIVE, arrivals, blocks, stage_times
from loadtest.workload import Workload, load_workload, shipped

TARGET = Target("127.0.0.1:1", "127.0.0.1:2", "tiny")


def workload(**keys: object) -> Workload:
    return Workload.model_validate({"description": "d", "prompts": {"chat": 1}, **keys})


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_workload_is_valid_and_can_be_drawn_from(name: str) -> None:
    drawn = draw(load_workload(name), TARGET, "0/1/0/0", "run", "salt")
    assert json.loads(drawn.inputs["messages"])[-1]["role"] == "user" or drawn.fault == "malformed"


def test_a_workload_that_is_not_there_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match="Did you mean rewrite"):
        load_workload("rewrit")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts: {chat: 1}\ntokns: 3\n", r"w\.yaml:2.*unknown key `tokns`"),
        ("prompts: {poems: 1}\n", "poems"),
        ("prompts: {chat: 1}\narrivals: poisson\n", "poisson arrivals need a rate"),
        ("prompts: {chat: 1}\nrate: 2\n", "a closed workload has no rate"),
        ("prompts: {chat: 1}\nfaults: {cancel: 0.7, malformed: 0.7}\n", "add up to more than 1"),
        ("prompts: {chat: 1}\narrivals: constant\nrate: 1\nturns: 3\n", "need closed arrivals"),
        ("prompts: {chat: 1}\nmax_tokens: {min: 9, max: 3}\n", "min 9 is above max 3"),
    ],
)
def test_a_wrong_workload_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(f"description: d\n{text}" if "tokns" not in text else text + "description: d\n")
    with pytest.raises(SpecError, match=message):
        load_workload(str(file))


def test_a_key_draws_the_same_request_every_time_and_another_salt_changes_only_the_opening() -> None:
    mixed = load_workload("mixed")
    first, again, other = (draw(mixed, TARGET, "0/1/0/7", run, salt) for run, salt in (("a", "a1"), ("a", "a1"), ("b", "b2")))
    assert first == again
    assert (first.kind, first.protocol, first.tenant, first.parameters) == (other.kind, other.protocol, other.tenant, other.parameters)
    texts = [json.loads(ask.inputs["messages"])[0]["content"] for ask in (first, other)]
    assert texts[0] != texts[1]
    assert texts[0].partition(") ")[2] == texts[1].partition(") ")[2]


def test_faults_come_as_often_as_asked_for_and_only_streams_are_stopped() -> None:
    soak = load_workload("soak")
    asks = [draw(soak, TARGET, f"0/{number}", "run", "salt") for number in range(4000)]
    shares = {fault: sum(ask.fault == fault for ask in asks) / len(asks) for fault in ("cancel", "disconnect", "malformed")}
    assert shares == pytest.approx({"cancel": 0.1, "disconnect": 0.1, "malformed": 0.05}, abs=0.02)
    assert all(ask.streams for ask in asks if ask.fault in ("cancel", "disconnect"))


def test_the_arms_alternate_turned_round_and_last_as_long_as_asked_for() -> None:
    timetable = [block for block in blocks(workload(block="15s"), minutes=1, ab=True) if block.counted]
    assert [block.arm for block in timetable] == [PLAIN, SPECULATIVE, SPECULATIVE, PLAIN]
    assert [block.pair for block in timetable] == [1, 1, 2, 2]
    assert sum(block.seconds for block in timetable) == pytest.approx(60)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 5)), min_size=1, max_size=6), st.floats(0.5, 1000))
def test_stages_fill_a_block_without_gap_or_overlap(parts: list[tuple[float, float]], seconds: float) -> None:
    stages = workload(stages=[{"share": share, "load": load} for share, load in [*parts, (1, 1)]]).stages
    times = stage_times(stages, seconds)
    assert times[0][0] == 0
    assert times[-1][1] == pytest.approx(seconds)
    assert all(end == start for (_, end, _), (start, _, _) in itertools.pairwise(times))


@given(st.sampled_from(["poisson", "constant"]), st.floats(0.5, 50), st.integers(0, 1000))
def test_arrivals_are_in_order_within_the_block_and_as_many_as_the_rate_says(kind: str, rate: float, seed: int) -> None:
    stages = [{"share": 1, "load": 1}, {"share": 1, "load": 0}, {"share": 2, "load": 2}]
    due = list(arrivals(workload(arrivals=kind, rate=rate, stages=stages), rate, 400, random.Random(seed)))
    assert due == sorted(due)
    assert all(0 <= time < 400 for time in due)
    assert not [time for time in due if 100 <= time < 200]
    expected = rate * (100 + 2 * 200)
    assert abs(len(due) - expected) <= (2 if kind == "constant" else 6 * expected**0.5)
