from __future__ import annotations

import threading
from typing import Any

import pytest

from builder.decoding.control import Reason, State, Transition
from builder.runtime.request import Cancellation, DecodeStats, FinishReason, Output, Request, Usage
from builder.runtime.speculation import ControlReport
from builder.telemetry.catalogue import CATALOGUE
from builder.telemetry.triton_sink import TritonSink

REQUEST = Request("r", (1, 2), tenant="search", rollout_arm="control")
STATS = DecodeStats("speculative", 2, 8, 6, target_passes_avoided=5, compute_seconds=0.25, decode_seconds=0.5)
LAST = Output("r", (3,), finish_reason=FinishReason.STOP, usage=Usage(10, 6, 4), stats=STATS)
EARLY = Output(
    "e", (), finish_reason=FinishReason.STOP, usage=Usage(0, 0), stats=DecodeStats("early_exit", exit_layers={20: 3}, pending_fills=1)
)


class Families:
    """pb_utils.MetricFamily as a recorder: (name, labels) -> [values given]."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = {}
        self.calls = 0

    def __call__(self, name: str, description: str, kind: str) -> Any:
        assert description
        self.kinds[name] = kind
        recorder = self

        class Family:
            def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Any:
                assert (buckets is not None) == (kind == "histogram")
                values = recorder.values.setdefault((name, frozenset(labels.items())), [])

                def record(value: float) -> None:
                    recorder.calls += 1
                    values.append(value)

                verb = {"counter": "increment", "gauge": "set", "histogram": "observe"}[kind]
                return type("Metric", (), {verb: staticmethod(record)})()

        return Family()

    def of(self, name: str, /, **labels: str) -> list[float]:
        return self.values[f"tandem_{name}", frozenset({"model": "p", "version": "3", **labels}.items())]


@pytest.fixture
def families() -> Families:
    return Families()


@pytest.fixture
def sink(families: Families) -> TritonSink:
    return TritonSink(families, model="p", version="3")


def report_everything(sink: TritonSink) -> None:
    sink.first_token(REQUEST, 0.2)
    sink.tokens_emitted(REQUEST, 3, None)
    sink.tokens_emitted(REQUEST, 4, 0.02)
    sink.round_done(4, 2)
    sink.round_done(4, 4)
    sink.pass_done(3, 1, 20, 10, 100)
    sink.pass_done(2, 0, 30, 15, 100)
    sink.finished(REQUEST, LAST, 1.5)
    sink.finished(Request("e", (1,)), EARLY, 1.5)
    sink.ledger("w", written=7, lost=1, failures=2, pending=3)
    sink.finished(REQUEST, Output("r", (), cancellation=Cancellation.DEADLINE), 0.5)
    sink.refused("search", "queue")
    moved = Transition(0.0, "greedy", State.SPECULATING, State.PLAIN, Reason.LOW_ACCEPTANCE, 0, 0.1, 40)
    sink.control_read(ControlReport(State.PLAIN, 0, (moved,)))
    sink.flags_read({"speculation": False, "all": True}, broken=True)


def test_the_sink_fills_exactly_the_metrics_of_the_catalogue(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    filled = {name for (name, _), values in families.values.items() if values}
    assert filled == {metric.name for metric in CATALOGUE}
    assert families.kinds == {metric.name: metric.kind for metric in CATALOGUE}


def test_every_series_has_the_labels_of_the_catalogue(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    labels = {metric.name: {"model", "version", *metric.labels} for metric in CATALOGUE}
    for name, series in families.values:
        assert {label for label, _ in series} == labels[name]


def test_rounds_are_counted_by_position(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert families.of("spec_decode_num_drafts") == [2]
    assert families.of("spec_decode_num_draft_tokens") == [8]
    assert families.of("spec_decode_num_accepted_tokens") == [6]
    assert [families.of("spec_decode_num_accepted_tokens_per_pos", position=str(i)) for i in range(4)] == [[2], [2], [1], [1]]


def test_tokens_are_tagged_by_tenant_type_and_optimisation(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    for token_type, count in {"input": 6, "cached_input": 4, "output": 6, "draft_rejected": 2}.items():
        assert families.of("tokens", tenant="search", token_type=token_type, optimisation="speculative") == [count]


def test_tokens_are_counted_by_the_layers_they_ran_through(families: Families, sink: TritonSink) -> None:
    stats = DecodeStats("early_exit", exit_layers={20: 3, 30: 5}, pending_fills=2)
    output = Output("r", (), finish_reason=FinishReason.STOP, usage=Usage(4, 8), stats=stats)
    sink.finished(Request("r", (1,)), output, 0.1)
    sink.flush()
    assert [families.of("early_exit_tokens", layer=layer) for layer in ("20", "30")] == [[3], [5]]
    assert (families.of("early_exit_layers"), families.of("early_exit_pending_fills")) == ([210], [2])


def test_finished_requests_and_their_time_are_tagged_as_their_tokens_are(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert families.of("finished_requests", tenant="search", optimisation="speculative", finish_reason="stop") == [1]
    assert families.of("compute_seconds", tenant="search", optimisation="speculative") == [0.25]
    assert families.of("target_passes_avoided") == [5]


def test_the_ledgers_totals_become_increments(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    sink.ledger("w", written=10, lost=1, failures=2, pending=0)
    sink.flush()
    assert families.of("ledger_records") == [7, 3]
    assert (families.of("ledger_lost_records"), families.of("ledger_failures")) == ([1], [2])
    assert families.of("ledger_pending_records") == [3, 0]
    assert families.of("ledger_writer", writer="w") == [1]  # a gauge is set when it changes


def test_refusals_and_cancellations_are_counted_by_their_cause(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert families.of("request_refusals", tenant="search", limit="queue") == [1]
    assert families.of("request_cancellations", reason="deadline") == [1]


def test_a_block_is_used_cached_or_free(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert [families.of("kv_blocks", state=state) for state in ("used", "cached", "free")] == [[30], [15], [55]]


def test_time_between_tokens_is_an_answers_mean_after_its_first(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert families.of("inter_token_latency_seconds") == [0.1]  # 0.5 s for the five tokens after the first; an answer of none has none
    assert families.of("spec_decode_acceptance_length") == [4.0]


def test_flags_and_the_state_of_their_file_are_gauges(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert families.of("flag", name="speculation") == [0]
    assert families.of("flag", name="all") == [1]
    assert families.of("flags_broken") == [1]


def test_the_state_is_one_of_three_and_transitions_are_counted_with_their_reason(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert [families.of("state", state=state) for state in ("speculating", "plain", "probing")] == [[0], [1], [0]]
    transition = {"from": "speculating", "to": "plain", "reason": "low_acceptance"}
    assert families.of("state_transitions", **transition) == [1]
    assert families.of("spec_decode_draft_length") == [0]


def test_both_sides_of_a_rollout_are_counted_apart(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    assert families.of("rollout_requests", arm="control") == [1]
    assert families.of("rollout_tokens", arm="control") == [5]
    assert families.of("rollout_decode_seconds", arm="control") == [0.5]


def test_the_loop_calls_nothing_of_triton_before_the_flush(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    assert families.calls == 0


def test_a_flush_hands_over_only_what_is_new(families: Families, sink: TritonSink) -> None:
    report_everything(sink)
    sink.flush()
    calls = families.calls
    sink.flush()
    assert families.calls == calls
    sink.round_done(4, 0)
    sink.flush()
    assert families.of("spec_decode_num_drafts") == [2, 1]
    assert families.of("spec_decode_num_accepted_tokens") == [6]


def test_counters_exist_before_their_first_event(families: Families, sink: TritonSink) -> None:
    assert sink
    assert families.of("spec_decode_num_accepted_tokens") == []


def test_nothing_is_lost_between_the_loop_and_the_flush(families: Families, sink: TritonSink) -> None:
    def loop() -> None:
        for _ in range(5000):
            sink.round_done(2, 1)

    thread = threading.Thread(target=loop)
    thread.start()
    while thread.is_alive():
        sink.flush()
    sink.flush()
    assert sum(families.of("spec_decode_num_drafts")) == 5000
