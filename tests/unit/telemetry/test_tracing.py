"""From steps to spans, with the SDK's own exporter in memory."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from builder.decoding.params import SamplingParams
from builder.errors import OverloadError
from builder.runtime.request import DecodeStats, FinishReason, Output, Request, Usage
from builder.runtime.steps import Prefill, Round, Step
from builder.telemetry import span_names as names
from builder.telemetry.detokenize_traces import MOST_OPEN, DetokenizeTraces
from builder.telemetry.request_traces import RequestTraces
from builder.telemetry.spans import Spans
from builder.telemetry.timeline import MOST_PHASES

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def spans(exporter: InMemorySpanExporter, sample: float = 1.0) -> Spans:
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(sample)))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider)


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> RequestTraces:
    return RequestTraces(spans(exporter), model="p", version="3")


def request(n: int = 1) -> Request:
    return Request("r", (1, 2, 3, 4), SamplingParams(n=n), tenant="search", arrival=100.0)


def step(at: float, *rounds: Round, prefill: int = 0) -> Step:
    """Half a second of drafting and half a second of a pass from `at`."""
    return Step(at, at + 0.5, at + 1.0, (Prefill("r", 0, prefill),) if prefill else (), rounds)


def last(index: int = 0, **fields: Any) -> Output:
    stats = DecodeStats("speculative", 2, 8, 6)
    known = {"finish_reason": FinishReason.LENGTH, "usage": Usage(0 if index else 4, 9), "stats": stats}
    return Output("r", (), index=index, **(known | fields))


def seconds(span: Any) -> float:
    return (span.end_time - span.start_time) / 1e9


def test_a_request_and_its_phases_are_one_trace_below_the_given_parent(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    assert traces.begin(request(), PARENT, None).startswith("00-0af7651916cd43dd8448eb211c80319c-")
    traces.timelines.step_done(step(101.5, prefill=4))
    traces.timelines.step_done(step(103.0, Round("r", 0, limit=4, drafted=3, accepted=2, tokens=3)))
    traces.timelines.step_done(step(104.0, Round("r", 0, limit=0, drafted=0, accepted=0, tokens=1)))
    traces.note(last())
    assert exporter.get_finished_spans() == ()  # nothing is made on the answers' way
    traces.flush()
    *phases, root = exporter.get_finished_spans()
    assert [span.name for span in phases] == [names.QUEUE, names.PREFILL, names.DRAFT, names.VERIFY, names.VERIFY]
    assert [seconds(span) for span in phases] == pytest.approx([2.0, 0.5, 0.5, 0.5, 0.5])
    assert root.parent.span_id == 0xB7AD6B7169203331
    assert {span.parent.span_id for span in phases} == {root.context.span_id}
    assert {span.context.trace_id for span in (*phases, root)} == {0x0AF7651916CD43DD8448EB211C80319C}
    assert root.attributes[names.TENANT] == "search"
    assert root.attributes[names.OPTIMISATION] == "speculative"
    assert (root.attributes[names.VERSION], root.attributes[names.OUTPUT_TOKENS]) == ("3", 9)
    verify = phases[3].attributes
    assert [verify[name] for name in (names.DRAFT_LENGTH, names.DRAFTED, names.ACCEPTED, names.TOKENS)] == [4, 3, 2, 3]


def test_a_long_answer_has_no_more_spans_than_a_bound_and_loses_no_round(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.begin(request(), PARENT, None)
    rounds = 5 * MOST_PHASES
    for number in range(rounds):
        traces.timelines.step_done(step(200.0 + number, Round("r", 0, limit=4, drafted=4, accepted=1, tokens=2)))
    traces.note(last())
    traces.flush()
    for name, busy in ((names.DRAFT, 0.5), (names.VERIFY, 0.5)):
        found = [span for span in exporter.get_finished_spans() if span.name == name]
        assert len(found) == MOST_PHASES
        assert sum(span.attributes[names.COUNT] for span in found) == rounds
        assert sum(span.attributes[names.DRAFTED] for span in found) == 4 * rounds
        assert sum(span.attributes[names.BUSY] for span in found) == pytest.approx(busy * rounds)
        assert found[-1].attributes[names.DRAFT_LENGTH] == 4
        assert seconds(found[-1]) > found[-1].attributes[names.BUSY]


def test_a_trace_says_where_tokens_left_early(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.begin(request(), PARENT, None)
    for number, layer in enumerate([None] * MOST_PHASES + [25, None, 20, 25]):
        traces.timelines.step_done(step(200.0 + number, Round("r", 0, limit=0, drafted=0, accepted=0, tokens=1, left_at=layer)))
    traces.note(last(stats=DecodeStats("early_exit", 0, 0, 0, exit_layers={25: 2, 20: 1, 30: 17})))
    traces.flush()
    *phases, root = exporter.get_finished_spans()
    assert [span.attributes.get(names.EXIT_LAYER) for span in phases if span.name == names.VERIFY] == [None] * (MOST_PHASES - 1) + [20]
    assert root.attributes[names.EXIT_LAYERS] == ("20: 1", "25: 2", "30: 17")


def test_a_trace_ends_with_the_last_of_several_answers(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.begin(request(n=2), PARENT, None)
    traces.note(last(1))
    traces.flush()
    assert exporter.get_finished_spans() == ()
    traces.note(Output("r", (7,)))
    traces.note(last(0, finish_reason=FinishReason.STOP))
    traces.flush()
    root = exporter.get_finished_spans()[-1]
    assert root.attributes[names.FINISH_REASONS] == ("length", "stop")
    assert root.attributes[names.OUTPUT_TOKENS] == 18
    assert not traces.timelines.active


def test_who_is_not_sampled_is_not_followed(exporter: InMemorySpanExporter) -> None:
    traces = RequestTraces(spans(exporter, sample=0.0), model="p", version="3")
    assert traces.begin(request(), None, None) == ""
    assert not traces.timelines.active
    traces.note(last())
    traces.flush()
    assert exporter.get_finished_spans() == ()
    assert traces.begin(request(), PARENT, None) != ""  # the client's decision stands


def test_a_refused_request_ends_its_trace_with_the_kind_of_error_only(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.begin(request(), None, None)
    traces.refuse(request(), OverloadError("64 wait", where="w", limit="queue", retry_after=1))
    (root,) = exporter.get_finished_spans()
    assert root.attributes[names.ERROR] == "OverloadError"
    assert not traces.timelines.active


def test_detokenize_makes_one_span_an_answer_and_forgets_those_that_were_cut_off(exporter: InMemorySpanExporter) -> None:
    traces = DetokenizeTraces(spans(exporter))
    traces.add(PARENT, 1_000, 1_100, last=False)
    traces.add(PARENT, 2_000, 2_300, last=True)
    (span,) = exporter.get_finished_spans()
    assert (span.start_time, span.end_time) == (1_000, 2_300)
    assert (span.attributes[names.COUNT], span.attributes[names.BUSY]) == (2, pytest.approx(400e-9))
    for number in range(MOST_OPEN + 3):
        traces.add(f"00-{number + 1:032x}-b7ad6b7169203331-01", number, number, last=False)
    assert len(exporter.get_finished_spans()) == 1 + 3
