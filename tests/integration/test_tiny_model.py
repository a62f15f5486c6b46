"""A tiny random model, built for real and served by the real tritonserver: plain and speculative decoding agree."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from builder.repository.versions import newest
from builder.serve import client
from builder.serve.triton import Triton
from tests.integration.talk import events, eventually, generate, refused, settled, total

PROMPTS = ["The capital of France is", "def f(x):", "aaaa bbbb aaaa bbbb", "Grüße 👋", "x", "1 2 3 4 5 6 7 8", "a b a b a b", "\n\n"]


def stats(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(answer["decode_stats"]))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_speculation_gives_the_text_of_plain_decoding(tiny_server: Triton, prompt: str) -> None:
    asked = {"text_input": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    plain, speculative = generate(tiny_server, **asked, speculation="off"), generate(tiny_server, **asked, speculation="on")
    assert speculative["text_output"] == plain["text_output"]
    assert stats(plain)["optimisation"] == "plain"
    assert stats(plain)["num_draft_tokens"] == 0
    assert stats(speculative)["optimisation"] == "speculative"
    assert json.loads(speculative["usage"])["completion_tokens"] == 48


def test_a_stream_is_the_whole_answer_in_parts(tiny_server: Triton) -> None:
    asked = {"text_input": "Grüße", "max_tokens": 40, "ignore_eos": True}
    chunks = events(tiny_server, **asked)
    assert "".join(chunk["text_output"] for chunk in chunks) == generate(tiny_server, **asked)["text_output"]
    assert [bool(chunk["decode_stats"]) for chunk in chunks[-2:]] == [False, True]


def test_a_seed_makes_a_sampled_answer_repeatable(tiny_server: Triton) -> None:
    asked = {"text_input": "once", "max_tokens": 24, "temperature": 1.0, "top_p": 0.95, "ignore_eos": True}
    first, again, other = (generate(tiny_server, **asked, seed=seed)["text_output"] for seed in (7, 7, 8))
    assert first == again != other


def test_eight_clients_at_once_get_what_each_gets_alone(tiny_server: Triton) -> None:
    def ask(prompt: str) -> str:
        parameters: dict[str, str | int | float | bool] = {"max_tokens": 32, "ignore_eos": True}
        chunks = client.generate(f"127.0.0.1:{tiny_server.ports['grpc']}", "tiny", prompt=prompt, parameters=parameters)
        return "".join(chunk.text for chunk in chunks)

    alone = [ask(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(ask, PROMPTS)) == alone


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(tiny_server: Triton) -> None:
    asked = {"text_input": "hello", "max_tokens": 40, "ignore_eos": True}
    whole = generate(tiny_server, **asked)["text_output"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    answer = generate(tiny_server, **asked, stop=stop)
    assert answer["text_output"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"


def test_messages_are_answered(tiny_server: Triton) -> None:
    answer = generate(tiny_server, messages=json.dumps([{"role": "user", "content": "hi"}]), max_tokens=4)
    assert json.loads(answer["usage"])["completion_tokens"] <= 4


def test_logprobs_belong_to_the_emitted_tokens(tiny_server: Triton) -> None:
    answer = generate(tiny_server, text_input="hello", max_tokens=6, logprobs=3, ignore_eos=True)
    items = json.loads(answer["logprobs"])
    assert len(items) == 6
    assert all(item["logprob"] == item["top"][0]["logprob"] for item in items)  # greedy: the most probable one


def test_bad_requests_leave_the_server_alive(tiny_server: Triton) -> None:
    assert "at most 255 fit" in refused(tiny_server, {"text_input": "x" * 4000})
    assert "more than 256 tokens can cover" in refused(tiny_server, {"text_input": "x" * 1_000_000})
    assert "top_p" in refused(tiny_server, {"text_input": "a", "top_p": 0})
    assert generate(tiny_server, text_input="ok", max_tokens=2)["finish_reason"] in ("length", "stop")


def test_metrics_show_the_drafting(tiny_server: Triton) -> None:
    before = settled(tiny_server, "tandem_spec_decode_num_drafts")
    answer = generate(tiny_server, text_input="hello", max_tokens=32, ignore_eos=True)
    eventually(lambda: total(tiny_server, "tandem_spec_decode_num_drafts") == before + stats(answer)["num_spec_steps"])
    assert total(tiny_server, "tandem_tokens", token_type="output", optimisation="speculative") > 0
    assert total(tiny_server, "tandem_kv_blocks", state="used") == 0


def test_a_long_prompt_asked_again_comes_from_the_prefix_cache(tiny_server: Triton) -> None:
    def ask(prompt: str) -> tuple[str, dict[str, Any]]:
        answer = generate(tiny_server, text_input=prompt, max_tokens=24, temperature=0, ignore_eos=True, tenant="search")
        return answer["text_output"], json.loads(answer["usage"])

    prompt = "Prefixes are kept: whoever comes second with the same long opening waits only for what is new. "
    name = "tandem_tokens"
    before = settled(tiny_server, name, token_type="cached_input", tenant="search")
    (first, cold), (second, warm) = ask(prompt), ask(prompt)
    assert first == second
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    cached = warm["prompt_tokens_details"]["cached_tokens"]
    assert cached == (warm["prompt_tokens"] - 1) // 16 * 16 > 0
    eventually(lambda: total(tiny_server, name, token_type="cached_input", tenant="search") == before + cached)
    assert total(tiny_server, "tandem_kv_blocks", state="cached") >= cached // 16


def test_the_version_matches_its_manifest(built_repository: Path) -> None:
    version = newest(built_repository, "tiny")
    version.manifest.check(version.folders)
    assert set(version.manifest.fingerprints)
