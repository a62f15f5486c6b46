"""What goes over the wire, to the letter: a real tritonserver whose engine repeats its prompt."""

from __future__ import annotations

import json
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from builder.errors import RequestError, ServeError
from builder.serve import client
from builder.serve.triton import Triton
from tests.integration.talk import events, eventually, generate, post, refused, settled, total


def url(server: Triton) -> str:
    return f"127.0.0.1:{server.ports['grpc']}"


def text_tensor(kind: Any, text: str) -> Any:
    tensor = kind.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return tensor


def test_generate_gives_one_response_with_the_whole_answer(echo_server: Triton) -> None:
    answer = generate(echo_server, text_input="Grüße 👋!", max_tokens=24, temperature=0)
    prompt_tokens = json.loads(answer["usage"])["prompt_tokens"]
    assert answer["text_output"].startswith("Grüße 👋!"[: min(24, prompt_tokens) // 4])
    assert answer["finish_reason"] == "length"
    assert json.loads(answer["usage"])["completion_tokens"] == 24
    assert json.loads(answer["decode_stats"])["version"] == "1"


def test_a_stream_sends_a_chunk_a_round_and_never_half_a_character(echo_server: Triton) -> None:
    whole = generate(echo_server, text_input="Grüße 👋!", max_tokens=15)["text_output"]
    chunks = events(echo_server, text_input="Grüße 👋!", max_tokens=15)
    assert len(chunks) == 15
    assert "".join(chunk["text_output"] for chunk in chunks) == whole
    assert not any("\ufffd" in chunk["text_output"] for chunk in chunks[:-1])
    assert [bool(chunk["usage"]) for chunk in chunks] == [False] * 14 + [True]


def test_messages_go_through_the_chat_template(echo_server: Triton) -> None:
    chat = json.dumps([{"role": "user", "content": "hi"}])
    answer = generate(echo_server, messages=chat, max_tokens=60, ignore_eos=True)
    raw = generate(echo_server, text_input="hi", max_tokens=2)
    assert json.loads(answer["usage"])["prompt_tokens"] > json.loads(raw["usage"])["prompt_tokens"]
    assert "hi" in answer["text_output"]


def test_logprobs_are_given_when_asked_for(echo_server: Triton) -> None:
    assert generate(echo_server, text_input="ab", max_tokens=2)["logprobs"] == ""
    items = json.loads(generate(echo_server, text_input="ab", max_tokens=2, logprobs=1)["logprobs"])
    assert [item["token"] for item in items] == ["a", "b"]
    assert items[0]["logprob"] == -0.5


def test_infer_says_that_decoupled_models_need_another_way(echo_server: Triton) -> None:
    with pytest.raises(InferenceServerException, match="decoupled"):
        http.InferenceServerClient(f"127.0.0.1:{echo_server.ports['http']}").infer("echo", [text_tensor(http, "a")])
    with pytest.raises(InferenceServerException, match="decoupled"):
        grpc.InferenceServerClient(url(echo_server)).infer("echo", [text_tensor(grpc, "a")])


def test_tritonclient_reads_the_ensemble_over_http(echo_server: Triton) -> None:
    triton = http.InferenceServerClient(f"127.0.0.1:{echo_server.ports['http']}")
    assert triton.is_model_ready("echo")
    assert {tensor["name"] for tensor in triton.get_model_metadata("echo")["inputs"]} == {"text_input", "messages"}


def test_tritonclient_streams_over_grpc(echo_server: Triton) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(url(echo_server)) as triton:
        triton.start_stream(lambda result, error: answers.put((result, error)))
        triton.async_stream_infer("echo", [text_tensor(grpc, "abc")], parameters={"stream": True, "max_tokens": 3, "temperature": 0.5})
        results = [answers.get(timeout=20) for _ in range(3)]
        triton.stop_stream()
    assert [error for _, error in results] == [None] * 3
    assert b"".join(result.as_numpy("text_output")[0] for result, _ in results) == b"abc"
    assert results[-1][0].get_response().parameters["triton_final_response"].bool_param


def test_eight_clients_at_once_get_their_own_answers(echo_server: Triton) -> None:
    def ask(number: int) -> str:
        prompt = f"{number}" * 3
        return "".join(chunk.text for chunk in client.generate(url(echo_server), "echo", prompt=prompt, parameters={"max_tokens": 30}))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert answers == [str(number) * 30 for number in range(8)]


BAD = {
    "empty prompt": ({"text_input": ""}, "the prompt is empty"),
    "no prompt": ({"max_tokens": 3}, "needs either text_input or messages"),
    "long prompt": ({"text_input": "x" * 300}, "has 300 tokens, but at most 255 fit"),
    "1 MB prompt": ({"text_input": "x" * 1_000_000}, "more than 256 tokens can cover"),
    "invalid UTF-8": (b'{"text_input": "\xff\xfe"}', "not valid UTF-8 at byte 0"),
    "unknown parameter": ({"text_input": "a", "temprature": 1}, "Did you mean `temperature`"),
    "bad temperature": ({"text_input": "a", "temperature": -1}, "temperature: -1 is not a number of at least 0"),
    "bad max_tokens": ({"text_input": "a", "max_tokens": 0}, "max_tokens: 0 is not a whole number"),
    "bad top_p": ({"text_input": "a", "top_p": 2}, "top_p: 2 is not"),
    "list parameter": ({"text_input": "a", "stop": ["x"]}, "stop"),
    "bad chat": ({"messages": "hello"}, "not JSON"),
    "engine failure": ({"text_input": "a", "seed": 13}, "the engine failed: unlucky"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_a_clear_error_and_the_server_lives_on(echo_server: Triton, name: str) -> None:
    body, message = BAD[name]
    assert message in refused(echo_server, body)
    assert generate(echo_server, text_input="ok", max_tokens=2)["text_output"] == "ok"


def test_an_error_in_a_stream_is_a_request_error_of_the_client(echo_server: Triton) -> None:
    with pytest.raises(RequestError, match=r"^top_k: -3 is not a whole number of at least 0"):
        list(client.generate(url(echo_server), "echo", prompt="a", parameters={"top_k": -3}))


def test_no_server_is_a_serve_error_of_the_client() -> None:
    with pytest.raises(ServeError, match="builder serve"):
        list(client.generate("127.0.0.1:9", "echo", prompt="a"))


def test_a_running_request_is_stopped_by_its_id(echo_server: Triton) -> None:
    stream = client.generate(url(echo_server), "echo", prompt="a", parameters={"max_tokens": 250}, request_id="long")
    next(stream)
    client.cancel(url(echo_server), "echo", "long")
    assert [chunk.finish_reason for chunk in stream][-1] == "cancelled"
    with pytest.raises(RequestError, match="no request with id 'long' is running"):
        client.cancel(url(echo_server), "echo", "long")


def test_leaving_a_stream_stops_its_request(echo_server: Triton) -> None:
    before = settled(echo_server, "tandem_tokens", token_type="output")
    stream = client.generate(url(echo_server), "echo", prompt="a", parameters={"max_tokens": 250})
    next(stream)
    stream.close()
    eventually(lambda: total(echo_server, "tandem_tokens", token_type="output") > before)
    assert total(echo_server, "tandem_tokens", token_type="output") - before < 200


def test_the_tenant_is_a_parameter_over_http_and_a_header_over_grpc(echo_server: Triton) -> None:
    generate(echo_server, text_input="a", max_tokens=5, tenant="search")
    eventually(lambda: total(echo_server, "tandem_tokens", tenant="search", token_type="output") >= 5)
    with grpc.InferenceServerClient(url(echo_server)) as triton:
        answers: queue.Queue[Any] = queue.Queue()
        triton.start_stream(lambda result, error: answers.put((result, error)), headers={"x-tenant": "support"})
        triton.async_stream_infer("echo", [text_tensor(grpc, "a")], parameters={"max_tokens": 7})
        assert answers.get(timeout=20)[1] is None
        triton.stop_stream()
    eventually(lambda: total(echo_server, "tandem_tokens", tenant="support", token_type="output") == 7)
    generate(echo_server, text_input="a", max_tokens=5, tenant="mallory")
    assert total(echo_server, "tandem_tokens", tenant="mallory") == 0


def test_metrics_count_drafts_by_position_and_time_requests(echo_server: Triton) -> None:
    before = settled(echo_server, "tandem_spec_decode_num_accepted_tokens")
    generate(echo_server, text_input="a", max_tokens=10)
    eventually(lambda: total(echo_server, "tandem_spec_decode_num_accepted_tokens") == before + 20)
    assert total(echo_server, "tandem_spec_decode_num_accepted_tokens_per_pos", position="1") > 0
    assert total(echo_server, "tandem_time_to_first_token_seconds_count", model="echo", version="1") > 0
    assert total(echo_server, "tandem_build_info") == 1


def test_generate_refuses_a_stream_with_more_than_one_response(echo_server: Triton) -> None:
    _, answer = post(echo_server, "generate", {"text_input": "a", "stream": True, "max_tokens": 3})
    assert b"exactly 1 response" in answer
    time.sleep(0.1)
    assert generate(echo_server, text_input="ok", max_tokens=2)["text_output"] == "ok"
