"""Traces of a real server: spans of three processes under one parent, which the client may have named."""

from __future__ import annotations

import json
import queue
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc
import yaml

from builder.cli import main
from builder.serve import client
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.telemetry import span_names as names
from builder.telemetry.otlp_receiver import OtlpReceiver, ReceivedSpan
from builder.telemetry.spans import ENDPOINT
from tests.integration import talk
from tests.integration.conftest import tiny_spec
from tests.integration.test_wire import text_tensor, url

PROMPT = "the cat sat on the mat"
DECODED = {names.TOKENIZE, names.QUEUE, names.PREFILL, names.DRAFT, names.VERIFY, names.DETOKENIZE}


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(built_repository: Path, receiver: OtlpReceiver) -> Iterator[Triton]:
    with Triton(built_repository, "tiny", free_ports(), variables={ENDPOINT: receiver.endpoint}) as server:
        yield server


def own_trace(flags: str = "01") -> tuple[str, str, str]:
    """Trace id, span id and the `traceparent` that says both."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-{flags}"


def spans_of(receiver: OtlpReceiver, trace_id: str) -> list[ReceivedSpan]:
    return receiver.spans(trace_id, (names.REQUEST, names.DETOKENIZE), 30)


def test_a_streamed_request_leaves_all_its_phases_below_the_clients_span(server: Triton, receiver: OtlpReceiver) -> None:
    trace_id, span_id, traceparent = own_trace()
    parameters: dict[str, Any] = {"max_tokens": 40, "tenant": "search", "ignore_eos": True, "traceparent": traceparent}
    chunks = list(client.generate(url(server), "tiny", prompt=PROMPT, parameters=parameters))
    usage, stats = chunks[-1].usage or {}, chunks[-1].decode_stats or {}
    spans = spans_of(receiver, trace_id)
    (root,) = (span for span in spans if span.name == names.REQUEST)
    assert root.parent_id == span_id
    assert {span.name for span in spans} == {names.REQUEST, *DECODED}
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert all(span.start <= span.end for span in spans)
    assert root.attributes[names.TENANT] == "search"
    assert root.attributes[names.OPTIMISATION] == "speculative"
    assert root.attributes[names.OUTPUT_TOKENS] == usage["completion_tokens"] == 40
    assert root.attributes[names.INPUT_TOKENS] == usage["prompt_tokens"]
    assert root.attributes[names.FINISH_REASONS] == ["length"]

    verify = [span.attributes for span in spans if span.name == names.VERIFY]
    assert sum(found[names.DRAFTED] for found in verify) == stats["num_draft_tokens"] > 0
    assert sum(found[names.ACCEPTED] for found in verify) == stats["num_accepted_draft_tokens"]
    assert max(found[names.DRAFT_LENGTH] for found in verify) == 4
    prefilled = sum(span.attributes[names.TOKENS] for span in spans if span.name == names.PREFILL)
    assert prefilled == usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    (detokenize,) = (span for span in spans if span.name == names.DETOKENIZE)
    assert detokenize.attributes[names.COUNT] == len(chunks)


def test_spans_hold_neither_prompt_nor_answer(server: Triton, receiver: OtlpReceiver) -> None:
    trace_id, _, traceparent = own_trace()
    answer = talk.generate(server, text_input=PROMPT, max_tokens=20, traceparent=traceparent)
    told = " ".join(f"{span.name} {span.attributes}" for span in spans_of(receiver, trace_id))
    assert "cat" not in told
    assert answer["text_output"].strip()
    assert answer["text_output"] not in told


def test_the_traceparent_may_come_in_the_header_of_a_grpc_stream(server: Triton, receiver: OtlpReceiver) -> None:
    trace_id, span_id, traceparent = own_trace()
    answers: queue.Queue[Any] = queue.Queue()
    with grpc.InferenceServerClient(url(server)) as triton:
        triton.start_stream(lambda result, error: answers.put((result, error)), headers={"traceparent": traceparent})
        triton.async_stream_infer("tiny", [text_tensor(grpc, "a")], parameters={"max_tokens": 2})
        assert answers.get(timeout=20)[1] is None
        triton.stop_stream()
    assert span_id in {span.parent_id for span in spans_of(receiver, trace_id) if span.name == names.REQUEST}


def test_a_client_that_does_not_sample_leaves_no_trace_and_a_broken_traceparent_starts_a_new_one(
    server: Triton, receiver: OtlpReceiver
) -> None:
    unwanted, _, traceparent = own_trace("00")
    talk.generate(server, text_input="a", max_tokens=2, traceparent=traceparent)
    talk.generate(server, text_input="a", max_tokens=2, traceparent="no traceparent")
    trace_id, _, traceparent = own_trace()
    talk.generate(server, text_input="a", max_tokens=2, traceparent=traceparent)
    spans_of(receiver, trace_id)
    with pytest.raises(TimeoutError):
        receiver.spans(unwanted, (names.REQUEST,), 0)


def test_builder_trace_shows_the_waterfall_of_one_request(
    built_repository: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = {f"{name}_port": port for name, port in free_ports().items()}
    pipeline = tmp_path / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights, serving=ports).model_dump(mode="json")))
    command = ["builder", "trace", str(pipeline), PROMPT, "--raw", "--max-tokens", "12", "--repository", str(built_repository), "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert not end.value.code
    spans = json.loads(capsys.readouterr().out)["spans"]
    assert [span["name"] for span in spans[:3]] == ["client", names.REQUEST, names.TOKENIZE]
    assert {span["name"] for span in spans} == {"client", names.REQUEST, *DECODED}
    client_span, request = spans[:2]
    assert request["parent_id"] == client_span["span_id"]
    assert 0 <= request["start_ms"] < request["start_ms"] + request["duration_ms"] <= client_span["duration_ms"]
