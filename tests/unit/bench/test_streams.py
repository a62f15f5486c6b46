"""Many streams in the bench: whole answers, ratios against the right base, and a page that shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.bench.concurrency import Load, Probes, measure_loads, measure_probes
from builder.bench.lab import PLAIN, Setting
from builder.bench.load_report import LoadReport, PeerLoad, write_load_report
from builder.bench.load_session import LoadOptions
from builder.bench.report import Machine
from builder.bench.streams import ask, open_loop, percentile, run, sustain
from builder.errors import SpecError
from tests.unit.bench.conftest import make_lab

DRAFTED = Setting(3, "draft_model")
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


def test_every_stream_gets_its_whole_answer_whatever_the_batch() -> None:
    lab = make_lab()
    alone = [lab.answer(PLAIN, prompt, 20).token_ids for prompt in PROMPTS]
    engine = open_loop(lab, DRAFTED, 12)
    streams = [ask(engine, PROMPTS[place % 3], 20) for place in range(12)]
    run(engine, streams)
    assert [stream.tokens for stream in streams] == [20] * 12
    assert all(len(tokens) == 20 for tokens in alone)
    assert all(len(stream.gaps) < 19 for stream in streams), "some round brought several tokens"


def test_a_sustained_load_replaces_each_answer_that_ends_and_is_timed_while_all_streams_run() -> None:
    span = sustain(open_loop(make_lab(), DRAFTED, 3), [PROMPTS[place % 3] for place in range(8)], 20, 3)
    assert [stream.tokens for stream in span.streams] == [20] * 8
    ends = sorted(stream.arrivals[-1][0] for stream in span.streams)
    assert span.ended == ends[5], "with the sixth end of eight, two of three streams are left"
    asked = sorted(stream.asked for stream in span.streams)
    assert asked[2] < ends[0] <= asked[3], "the fourth is asked when the first has ended"
    inside = sum(count for stream in span.streams for at, count in stream.arrivals if at <= span.ended)
    assert 6 * 20 <= inside < 8 * 20
    assert span.tokens_per_second == inside / (span.ended - span.began)


def test_each_level_is_measured_plainly_and_speculatively() -> None:
    loads = measure_loads(make_lab(), PROMPTS, 12, (1, 4), DRAFTED, blocks=2)
    assert [(load.streams, load.setting) for load in loads] == [(1, PLAIN), (1, DRAFTED), (4, PLAIN), (4, DRAFTED)]
    assert [load.draft_tokens > 0 for load in loads] == [False, True, False, True]
    assert all(load.tokens_per_second > 0 and load.ttft_p95 >= load.ttft_p50 for load in loads)


def test_the_probes_fit_a_short_context() -> None:
    found = measure_probes(make_lab(), [1, 2, 3, 4, 5, 6, 7, 8])
    assert found.prompt_tokens == 118
    assert found.prefix_tokens == 80
    assert found.interference > 0


def load(streams: int, setting: Setting, speed: float) -> Load:
    return Load(streams, setting, 1.1 * speed, speed, 0.01, 0.02, 0.03, 0.04, float(setting.draft_tokens))


@pytest.fixture
def report() -> LoadReport:
    loads = (load(1, PLAIN, 50.0), load(1, DRAFTED, 100.0), load(4, PLAIN, 200.0), load(4, DRAFTED, 190.0))
    peers = (PeerLoad("<openvino>", "1", 4, 160.0), PeerLoad("<openvino>", "1", 8, 300.0))
    return LoadReport("tiny", 1, Machine("cpu", 2, "amx", 2, 0.5), 128, 3, loads, Probes(0.01, 0.03, 2000, 0.2, 0.02, 1000), peers)


def test_ratios_name_their_base(report: LoadReport) -> None:
    assert report.ratios(report.loads[3]) == pytest.approx({"over_plain": 0.95, "burst_over_plain": 0.95, "over_fewest": 3.8})
    document = report.to_json()
    assert [peer["ours_over_peer"] for peer in document["peers"]] == [1.25, None]
    assert document["probes"]["interference"] == pytest.approx(3.0)


def test_the_page_shows_every_load_and_escapes_names(report: LoadReport, tmp_path: Path) -> None:
    page = write_load_report(replace(report, pipeline="<tiny>"), tmp_path / "out").read_text()
    assert "&lt;tiny&gt;" in page and "&lt;openvino&gt;" in page
    assert page.count("draft_model</td>") == 2
    assert "<svg" in page


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([], 0.5) == 0.0


@pytest.mark.parametrize("level", [0, 257])
def test_a_number_of_streams_out_of_range_is_refused(level: int) -> None:
    with pytest.raises(SpecError, match=str(level)):
        LoadOptions((1, level)).check()
