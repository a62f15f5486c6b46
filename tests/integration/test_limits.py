"""Refusals, deadlines, cancellations, several answers and restarts, as clients of the real tritonserver see them."""

from __future__ import annotations

import http.client
import json
import queue
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc

from builder.errors import RequestError
from builder.serve import client
from builder.serve.ports import free_ports
from builder.serve.triton import Triton, model_ready
from tests.integration.conftest import publish_echo
from tests.integration.talk import events, eventually, generate, post, refused, settled, total
from tests.integration.test_wire import text_tensor, url


def grpc_error(server: Triton, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc.InferenceServerClient(url(server)) as triton:
        triton.start_stream(lambda result, error: answers.put(error or result), headers=headers)
        triton.async_stream_infer(server.pipeline, [text_tensor(grpc, "a")], parameters=parameters)
        return answers.get(timeout=20)


def test_over_a_tenants_concurrency_is_unavailable_with_a_time_to_come_back(tiny_server: Triton) -> None:
    asked = {"tenant": "trial", "n": 3, "temperature": 1.0, "max_tokens": 2}
    text = "UNAVAILABLE: serving.tenants.trial.max_concurrent: tenant trial has 0 answers running or waiting, and 2 is its limit"
    assert text in refused(tiny_server, {"text_input": "a", **asked})
    error = grpc_error(tiny_server, asked, {"triton_grpc_error": "true"})
    assert error.status() == "StatusCode.UNAVAILABLE"
    assert error.message().endswith("Try again in 1 s.")
    assert grpc_error(tiny_server, asked, {}).status() is None  # without the header the text alone says it
    eventually(lambda: total(tiny_server, "tandem_request_refusals", tenant="trial", limit="tenant_concurrency") == 3)


def test_over_a_tenants_rate_is_unavailable_until_the_minute_is_over(tiny_server: Triton) -> None:
    answers = [post(tiny_server, "generate", {"text_input": "a", "tenant": "trial", "max_tokens": 1}) for _ in range(6)]
    assert [status for status, _ in answers] == [200] * 5 + [400]
    text = json.loads(answers[-1][1])["error"]
    assert "UNAVAILABLE: serving.tenants.trial.requests_per_minute" in text
    seconds = int(text.rpartition("Try again in ")[2].removesuffix(" s."))
    assert 1 <= seconds <= 60
    assert generate(tiny_server, text_input="a", max_tokens=1)["text_output"] is not None  # others are not meant


def test_the_codes_of_errors_over_grpc(echo_server: Triton) -> None:
    def status(**parameters: Any) -> str:
        return str(grpc_error(echo_server, parameters, {"triton_grpc_error": "true"}).status()).removeprefix("StatusCode.")

    assert status(top_k=-1) == "INVALID_ARGUMENT"
    assert status(seed=13) == "INTERNAL"  # FAILING_SEED
    assert status(seed=34) == "CANCELLED"  # STARVED_SEED


def test_a_request_whose_time_was_over_before_its_first_token_is_an_error(echo_server: Triton) -> None:
    assert "CANCELLED: timeout_ms: the time was over" in refused(echo_server, {"text_input": "a", "seed": 34})
    with pytest.raises(RequestError, match=r"^CANCELLED: timeout_ms: the time was over"):
        list(client.generate(url(echo_server), "echo", prompt="a", parameters={"seed": 34}))


def test_a_request_whose_time_is_over_ends_with_what_it_has(tiny_server: Triton) -> None:
    before = settled(tiny_server, "tandem_request_cancellations", reason="deadline")
    asked = {"max_tokens": 250, "ignore_eos": True, "speculation": "off", "timeout_ms": 25}  # alone, it takes some 200 ms
    chunks = list(client.generate(url(tiny_server), "tiny", prompt="a", parameters=asked))
    assert chunks[-1].finish_reason == "timeout"
    assert chunks[-1].usage is not None and 0 < chunks[-1].usage["completion_tokens"] < 250
    eventually(lambda: total(tiny_server, "tandem_request_cancellations", reason="deadline") == before + 1)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_stream_nobody_reads_is_reclaimed_through_the_ensemble(echo_server: Triton, protocol: str) -> None:
    """The client only goes away: no stop by id. Detokenize sees it, and tells decode."""
    before = settled(echo_server, "tandem_request_cancellations", reason="disconnected")
    if protocol == "grpc":
        triton = grpc.InferenceServerClient(url(echo_server))
        first: queue.Queue[Any] = queue.Queue()
        triton.start_stream(lambda result, error: first.put(error or result))
        triton.async_stream_infer("echo", [text_tensor(grpc, "a")], parameters={"max_tokens": 200, "stream": True, "seed": 21})
        first.get(timeout=20)
        triton.stop_stream(cancel_requests=True)
        triton.close()
    else:
        connection = http.client.HTTPConnection("127.0.0.1", echo_server.ports["http"], timeout=20)
        body = {"text_input": "a", "max_tokens": 200, "stream": True, "seed": 21}
        connection.request("POST", "/v2/models/echo/generate_stream", json.dumps(body))
        response = connection.getresponse()
        response.read(100)
        response.close()
        connection.close()
    eventually(lambda: total(echo_server, "tandem_request_cancellations", reason="disconnected") == before + 1)


def test_several_answers_come_in_one_response_and_share_their_prompt(tiny_server: Triton) -> None:
    asked = {"text_input": "once upon a time " * 4, "max_tokens": 12, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    alone, answer = generate(tiny_server, **asked), generate(tiny_server, **asked, n=3, logprobs=1)
    assert answer["index"] == [0, 1, 2]
    assert answer["finish_reason"] == ["length"] * 3
    assert answer["text_output"][0] == alone["text_output"]
    assert len(set(answer["text_output"])) == 3
    usage, single = json.loads(answer["usage"]), json.loads(alone["usage"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (single["prompt_tokens"], 36)
    assert [len(json.loads(one)) for one in answer["logprobs"]] == [12, 12, 12]
    assert generate(tiny_server, **asked, n=3)["text_output"] == answer["text_output"]


def test_the_chunks_of_several_streamed_answers_carry_their_index(tiny_server: Triton) -> None:
    asked = {"text_input": "once", "max_tokens": 9, "temperature": 1.0, "seed": 5, "ignore_eos": True, "n": 3}
    whole, chunks = generate(tiny_server, **asked), events(tiny_server, **asked)
    for index in range(3):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text_output"] for chunk in own) == whole["text_output"][index]
        assert [bool(chunk["finish_reason"]) for chunk in own] == [False] * (len(own) - 1) + [True]
    assert [bool(chunk["usage"]) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    parameters = {name: value for name, value in asked.items() if name != "text_input"}
    assert sorted({chunk.index for chunk in client.generate(url(tiny_server), "tiny", prompt="once", parameters=parameters)}) == [0, 1, 2]  # type: ignore[arg-type]


def test_a_broken_engine_takes_the_model_out_of_readiness_and_a_fresh_one_serves(tmp_path: Path, tiny_weights: Path) -> None:
    publish_echo(tmp_path, tiny_weights)
    with Triton(tmp_path, "echo", free_ports()) as server:
        for processes in (2, 3):
            generate(server, text_input="a", max_tokens=1, seed=66)  # BREAKING_SEED
            eventually(lambda: not model_ready(server.host, server.ports["http"], "echo"))
            eventually(lambda: model_ready(server.host, server.ports["http"], "echo"))
            assert generate(server, text_input="ok", max_tokens=2)["text_output"] == "ok"
            log = (tmp_path / ".flags" / "echo.events.jsonl").read_text()
            assert [json.loads(line)["event"] for line in log.splitlines()].count("load") == processes
