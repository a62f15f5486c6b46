"""The decode model's engine over tensorrt_llm.LLM, with a double of recorded signatures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.decoding.params import SamplingParams
from builder.errors import EngineError, RequestError
from builder.plan.context import PlanContext
from builder.repository.llmapi import ARGUMENTS, MODEL_YAML, PLAIN_YAML, open_llmapi, write_arguments
from builder.runtime.llmapi_engine import LlmApiEngine
from builder.runtime.request import Cancellation, FinishReason, Output, Request
from builder.runtime.switches import Switches
from builder.spec import load_pipeline
from tests.unit.tiny_models import write_tiny_tokenizer
from tests.unit.trtllm.llm_double import Llm, tensorrt_llm

PROMPT = (10, 11, 12)
EOS = 257
OpenEngine = Callable[..., tuple[LlmApiEngine, list[Llm]]]


@pytest.fixture
def open_engine(make_plan_context: Callable[..., PlanContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenEngine]:
    """open_engine(version="1.3.0", trt={...}, pause=...) -> a started engine and the LLM instances it made."""
    with ExitStack() as stack:

        def open_(*, version: str = "1.2.1", trt: dict[str, Any] | None = None, **double: Any) -> tuple[LlmApiEngine, list[Llm]]:
            context = make_plan_context(engine={"backend": "trtllm-llmapi"}, trt={"version": version} | (trt or {}))
            (tmp_path / ARGUMENTS).mkdir()
            write_arguments(tmp_path / ARGUMENTS, context)
            (tmp_path / "target").mkdir()
            (tmp_path / "target" / "config.json").write_text('{"vocab_size": 320}')
            (tmp_path / "tokenizer").mkdir()
            write_tokenizer(tmp_path / "tokenizer")
            made: list[Llm] = []
            monkeypatch.setitem(sys.modules, "tensorrt_llm", tensorrt_llm(version, made, **double))
            engine = open_llmapi(tmp_path, context.spec)
            engine.start()
            stack.callback(engine.stop)
            return engine, made

        yield open_


def write_tokenizer(folder: Path) -> None:
    from builder.repository.tokenizer import tokenizer_texts
    from builder.weights import open_tokenizer

    source = folder / "source"
    source.mkdir()
    write_tiny_tokenizer(source)
    (source / "config.json").write_text('{"eos_token_id": 257, "bos_token_id": 256}')
    for name, text in tokenizer_texts(open_tokenizer(str(source), folder)).items():
        (folder / name).write_text(text)


class Client:
    """Collects the outputs of one request."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.first, self.ended = threading.Event(), threading.Event()

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        self.first.set()
        if output.finish_reason is not None:
            self.ended.set()

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def last(self) -> Output:
        assert self.ended.wait(20)
        return self.outputs[-1]


def ask(engine: LlmApiEngine, prompt: tuple[int, ...] = PROMPT, speculation: bool = True, **sampling: Any) -> Client:
    client = Client()
    request = Request(f"r{id(client)}", prompt, SamplingParams(**{"max_tokens": 10} | sampling), speculation, tenant="search")
    engine.submit(request, client)
    return client


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0"])
def test_an_answer_streams_and_ends_at_its_length(open_engine: OpenEngine, version: str) -> None:
    engine, _ = open_engine(version=version)
    client = ask(engine)
    assert client.last.finish_reason is FinishReason.LENGTH
    assert client.token_ids == list(range(13, 23))
    assert len(client.outputs) == 3  # four, four and two tokens
    assert client.last.usage is not None and client.last.usage.completion_tokens == 10


def test_both_instances_take_only_names_of_the_version(open_engine: OpenEngine, tmp_path: Path) -> None:
    _, made = open_engine(version="1.3.0")
    assert [("speculative_config" in llm.arguments) for llm in made] == [True, False]
    assert made[0].arguments["model"] == str(tmp_path / "target")
    assert made[0].arguments["speculative_config"]["speculative_model"] == str(tmp_path / "draft")


def test_a_name_of_another_version_stops_the_load_with_that_name(open_engine: OpenEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="acceptance_rate_threshold"):
        open_engine(trt={"arguments": {"speculative_config__acceptance_rate_threshold": 0.4}})


def test_an_end_token_ends_the_answer(open_engine: OpenEngine) -> None:
    engine, _ = open_engine()
    client = ask(engine, (10, EOS - 3))
    assert client.last.finish_reason is FinishReason.STOP
    assert client.token_ids == [EOS - 2, EOS - 1, EOS]


def test_drafts_are_counted_from_the_request_s_own_figures(open_engine: OpenEngine) -> None:
    engine, _ = open_engine()
    stats = ask(engine).last.stats
    assert stats is not None
    assert (stats.optimisation, stats.num_draft_tokens, stats.num_spec_steps) == ("speculative", 9, 3)
    assert stats.state == "speculating"


def test_a_release_that_counts_no_drafts_reports_none(open_engine: OpenEngine) -> None:
    engine, _ = open_engine(counts=False)
    stats = ask(engine).last.stats
    assert stats is not None and stats.num_draft_tokens == 0


def test_a_request_without_speculation_goes_to_the_plain_instance(open_engine: OpenEngine) -> None:
    engine, (speculative, plain) = open_engine()
    stats = ask(engine, speculation=False).last.stats
    assert (len(speculative.generations), len(plain.generations)) == (0, 1)
    assert stats is not None and (stats.optimisation, stats.state) == ("plain", "plain")


def test_the_kill_switch_moves_new_requests_and_a_tenant_may_differ(open_engine: OpenEngine) -> None:
    engine, (speculative, plain) = open_engine()
    assert engine.control_report().draft_tokens == 3
    engine.set_switches(Switches(speculation=False))
    assert engine.control_report().draft_tokens == 0
    assert ask(engine).last.finish_reason is FinishReason.LENGTH
    engine.set_switches(Switches(speculation=False, tenant_speculation={"search": True}))
    assert ask(engine).last.finish_reason is FinishReason.LENGTH
    assert (len(speculative.generations), len(plain.generations)) == (1, 1)


def test_without_a_plain_instance_nothing_can_be_switched_off(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine, made = open_engine(trt={"plain_instance": False})
    assert len(made) == 1 and not (tmp_path / ARGUMENTS / PLAIN_YAML).exists()
    stats = ask(engine, speculation=False).last.stats
    assert stats is not None and stats.state == "speculating"


def test_both_ways_give_the_same_tokens(open_engine: OpenEngine) -> None:
    engine, _ = open_engine()
    first, second = ask(engine), ask(engine, speculation=False)
    assert first.last.finish_reason and second.last.finish_reason
    assert first.token_ids == second.token_ids


def test_a_cancelled_request_ends_with_its_reason_and_is_aborted(open_engine: OpenEngine) -> None:
    engine, (speculative, _) = open_engine(pause=0.02)
    client = ask(engine, max_tokens=200)
    assert client.first.wait(20)
    assert engine.cancel(f"r{id(client)}", Cancellation.CLIENT)
    assert client.last.finish_reason is FinishReason.CANCELLED
    assert client.last.cancellation is Cancellation.CLIENT
    assert speculative.generations[0].aborted
    assert not engine.cancel(f"r{id(client)}", Cancellation.CLIENT)


def test_a_request_ends_at_its_deadline_with_what_it_has(open_engine: OpenEngine) -> None:
    engine, (speculative, _) = open_engine(pause=0.02)
    client = Client()
    engine.submit(Request("late", PROMPT, SamplingParams(max_tokens=200), timeout=0.2), client)
    assert client.last.finish_reason is FinishReason.TIMEOUT
    assert speculative.generations[0].aborted


def test_a_request_cancelled_before_its_first_step_still_gets_its_last_output(open_engine: OpenEngine) -> None:
    engine, _ = open_engine(pause=0.02)
    clients = [ask(engine, max_tokens=200) for _ in range(5)]
    for client in clients:
        engine.cancel(f"r{id(client)}", Cancellation.CLIENT)
    assert {client.last.finish_reason for client in clients} == {FinishReason.CANCELLED}


def test_stopping_ends_every_request_and_frees_both_instances(open_engine: OpenEngine) -> None:
    engine, made = open_engine(pause=0.02)
    clients = [ask(engine, max_tokens=200) for _ in range(3)]
    engine.stop()
    assert {client.last.finish_reason for client in clients} == {FinishReason.CANCELLED}
    assert all(llm.closed for llm in made)


def test_one_failing_request_leaves_the_others(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, (speculative, _) = open_engine()
    monkeypatch.setattr(speculative, "generate_async", lambda *_, **__: 1 / 0)
    assert ask(engine).last.finish_reason is FinishReason.ERROR
    assert ask(engine, speculation=False).last.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [{"temperature": -1.0}, {"logprobs": 2}, {"n": 2, "temperature": 1.0}])
def test_a_bad_value_is_refused_by_its_name(open_engine: OpenEngine, sampling: dict[str, Any]) -> None:
    engine, _ = open_engine()
    with pytest.raises(RequestError, match=next(iter(sampling))):
        ask(engine, **sampling)


def test_without_tensorrt_llm_the_error_says_where_to_serve(
    make_plan_context: Callable[..., PlanContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(EngineError, match="GPU host"):
        open_llmapi(tmp_path, make_plan_context(engine={"backend": "trtllm-llmapi"}).spec)


def test_another_line_than_the_version_was_made_for_is_refused(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_engine()
    monkeypatch.setitem(sys.modules, "tensorrt_llm", tensorrt_llm("1.3.0", []))
    with pytest.raises(EngineError, match=r"1\.3\.0 is installed"):
        open_llmapi(tmp_path, load_pipeline(tmp_path / "pipeline.yaml").spec)


def test_model_yaml_is_plain_yaml(open_engine: OpenEngine, tmp_path: Path) -> None:
    open_engine()
    arguments = yaml.safe_load((tmp_path / ARGUMENTS / MODEL_YAML).read_text())
    assert arguments["disable_overlap_scheduler"] is True
    assert arguments["kv_cache_config"]["enable_block_reuse"] is True
