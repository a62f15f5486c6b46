"""The Triton models against a stand-in for Triton: what is sent, in which order, and that nothing ends them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builder.decoding.control import State
from builder.decoding.params import SamplingParams
from builder.errors import RepositoryError, RequestError
from builder.repository.models.parameters import Options
from builder.runtime.request import DecodeStats, FinishReason, Output, Request, Usage
from builder.runtime.speculation import ControlReport
from builder.runtime.switches import Switches
from builder.spec.pipeline import PipelineSpec
from builder.spec.speculation import Speculation

STATS = DecodeStats("speculative", 2, 8, 6, (0, 0, 1, 0, 1))


class ScriptedEngine:
    """Keeps what was submitted; the test plays the engine's part."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Request, Callable[[Output], None]]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.stopped = False
        self.switches = Switches()
        self.broken = False
        self.step_observer: Any = None

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        if request.sampling.max_tokens == 99:
            raise RequestError("64 requests are waiting")
        self.submitted.append((request, on_output))

    def cancel(self, request_id: str, reason: str) -> bool:
        self.cancelled.append((request_id, reason))
        return True

    def set_switches(self, switches: Switches) -> None:
        self.switches = switches

    def observe_steps(self, observer: Any) -> None:
        self.step_observer = observer

    def control_report(self) -> ControlReport:
        return ControlReport(State.SPECULATING, 4, ())

    def start(self) -> None: ...
    def stop(self) -> None:
        self.stopped = True

    def emit(self, index: int, *token_ids: int, final: bool = False, **fields: Any) -> None:
        request, on_output = self.submitted[index]
        if final:
            fields = {"finish_reason": FinishReason.LENGTH, "usage": Usage(3, 2), "stats": STATS} | fields
        on_output(Output(request.id, token_ids, **fields))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def stream_interval() -> str:
    return "0ms"


@pytest.fixture
def decode(tmp_path: Path, engine: ScriptedEngine, stream_interval: str) -> Iterator[Any]:
    from builder.repository.models.decode import TritonPythonModel

    sections = {"metadata": {"name": "p", "owner": "o"}, "target": {"weights": "w.gguf"}, "serving": {"stream_interval": stream_interval}}
    spec = PipelineSpec.model_validate(sections)

    class Model(TritonPythonModel):
        load = staticmethod(lambda folder, observer: engine)
        read_spec = staticmethod(lambda folder: spec)

    model = Model()
    model.initialize({"model_repository": str(tmp_path / "p_decode"), "model_version": "4", "model_name": "p_decode"})
    yield model
    if not engine.stopped:
        model.finalize()


def asked(make_request: Any, options: Options, request_id: str = "r") -> Any:
    text = np.array([options.to_json(request_id).encode()], dtype=np.object_)
    return make_request(input_ids=np.array([1, 2, 3], dtype=np.int32), request=text)


def part_of(response: Any) -> Any:
    """The one sample's part that a response carries."""
    from builder.repository.models.parts import Part

    return Part.from_json(response.text("parts"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


def test_a_request_that_does_not_stream_gets_one_response_with_all_chunks(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    request = asked(make_request, Options())
    assert decode.execute([request]) is None
    engine.emit(0, 5, 6, context_ids=(3,))
    engine.emit(0, 7, context_ids=(5, 6), text_limit=2, final=True)
    assert request.sender.final.wait(20)
    (response,) = request.sender.responses
    part = part_of(response)
    assert part.chunks == [[[3], [5, 6], -1], [[5, 6], [7], 2]]
    assert part.finish_reason == "length"
    assert json.loads(part.usage)["total_tokens"] == 5
    stats = json.loads(part.decode_stats)
    assert (stats["version"], stats["draft_acceptance_rate"], stats["mean_acceptance_length"]) == ("4", 0.75, 4.0)


def test_a_request_that_streams_gets_a_response_a_chunk_and_usage_in_the_last(
    decode: Any, engine: ScriptedEngine, make_request: Any
) -> None:
    request = asked(make_request, Options(stream=True))
    decode.execute([request])
    engine.emit(0, 5)
    engine.emit(0, 6, final=True)
    assert request.sender.final.wait(20)
    first, last = map(part_of, request.sender.responses)
    assert first.usage == first.decode_stats == first.finish_reason == ""
    assert last.usage
    assert last.decode_stats


@pytest.mark.parametrize("stream_interval", ["10s"])
def test_chunks_within_the_stream_interval_travel_together_and_the_first_and_last_do_not_wait(
    decode: Any, engine: ScriptedEngine, make_request: Any
) -> None:
    request = asked(make_request, Options(stream=True))
    decode.execute([request])
    engine.emit(0, 5)
    wait_until(lambda: len(request.sender.responses) == 1)
    engine.emit(0, 6)
    engine.emit(0, 7, 8)
    engine.emit(0, 9, final=True)
    assert request.sender.final.wait(5)
    assert [part_of(response).token_ids for response in request.sender.responses] == [[5], [6, 7, 8, 9]]


@pytest.mark.parametrize("stream_interval", ["100ms"])
def test_held_chunks_go_when_they_are_due_though_nothing_follows(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    request = asked(make_request, Options(stream=True))
    decode.execute([request])
    for token in (5, 6, 7):
        engine.emit(0, token)
    wait_until(lambda: sum(len(part_of(response).token_ids) for response in request.sender.responses) == 3)
    assert len(request.sender.responses) <= 3


def test_an_engine_error_is_an_error_response(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    request = asked(make_request, Options(stream=True))
    decode.execute([request])
    engine.emit(0, finish_reason=FinishReason.ERROR, error="the pass failed")
    assert request.sender.final.wait(20)
    assert "the pass failed" in request.sender.responses[0].error.message


def test_a_refused_request_is_answered_and_the_next_one_served(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    refused, served = asked(make_request, Options(SamplingParams(max_tokens=99))), asked(make_request, Options())
    decode.execute([refused, served])
    assert refused.sender.responses[0].error.message == "64 requests are waiting."
    engine.emit(0, 5, final=True)
    assert served.sender.final.wait(20)


def test_a_request_is_stopped_by_its_id(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    decode.execute([asked(make_request, Options(), "mine"), asked(make_request, Options(), "other")])
    stop = asked(make_request, Options(cancel="mine"))
    decode.execute([stop])
    assert engine.cancelled == [(engine.submitted[0][0].id, "client")]
    assert part_of(stop.sender.responses[0]).finish_reason == "cancelled"


def test_stopping_an_id_that_does_not_run_is_an_error(decode: Any, make_request: Any) -> None:
    stop = asked(make_request, Options(cancel="nobody"))
    decode.execute([stop])
    assert "no request with id 'nobody' is running" in stop.sender.responses[0].error.message


def test_a_request_whose_consumer_left_is_cancelled(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    request = asked(make_request, Options(stream=True))
    decode.execute([request])
    request.sender.cancelled = True
    wait_until(lambda: (engine.submitted[0][0].id, "disconnected") in engine.cancelled)


def test_an_answer_that_cannot_be_sent_is_cancelled_alone(
    decode: Any, engine: ScriptedEngine, make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = asked(make_request, Options(stream=True)), asked(make_request, Options(stream=True))
    decode.execute([broken, whole])
    monkeypatch.setattr(broken.sender, "send", lambda *args, **kwargs: 1 / 0)
    engine.emit(0, 5)
    engine.emit(1, 5, final=True)
    assert whole.sender.final.wait(20)
    assert engine.cancelled == [(engine.submitted[0][0].id, "undeliverable")]


def test_whoever_waits_at_unload_gets_an_answer(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    request = asked(make_request, Options())
    decode.execute([request])
    decode.finalize()
    assert engine.stopped
    assert request.sender.final.is_set()
    assert "unloaded" in request.sender.responses[0].error.message


def test_the_flags_beside_the_model_reach_the_engine_and_outlive_a_broken_file(
    decode: Any, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.repository.flag_store import FlagStore
    from builder.repository.models import decode as module

    logged: list[str] = []
    monkeypatch.setattr(module.pb_utils.Logger, "log_error", logged.append)
    (tmp_path / "p_decode").mkdir()
    store = FlagStore(tmp_path, "p")
    store.set({"all": False}, "test")
    wait_until(lambda: not engine.switches.speculation)
    store.path.write_text("{")
    wait_until(lambda: len(logged) == 1)
    time.sleep(3 * module.UPKEEP_PERIOD)
    assert len(logged) == 1
    assert "p.json" in logged[0]
    assert not engine.switches.speculation
    store.set({"all": True}, "test")
    wait_until(lambda: engine.switches.speculation)


def test_a_half_published_version_is_not_loaded(tmp_path: Path) -> None:
    from builder.repository.models.folder import version_folder

    (tmp_path / "p" / "1").mkdir(parents=True)
    args = {"model_repository": str(tmp_path / "p_decode")}
    assert version_folder(args | {"model_version": "1"}) == tmp_path / "p_decode" / "1"
    with pytest.raises(RepositoryError, match="version 2 was not published to its end"):
        version_folder(args | {"model_version": "2"})


def test_chunks_are_joined_with_their_own_context_and_cut() -> None:
    from builder.repository.models.detokenize import text_of
    from builder.repository.models.parts import Part

    tokenizer: Any = SimpleNamespace()
    seen: list[tuple[list[int], list[int], bool]] = []

    def delta(_: Any, context: list[int], new: list[int], final: bool) -> str:
        seen.append((context, new, final))
        return "".join(map(str, new))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builder.repository.models.detokenize.delta", delta)
        text = text_of(tokenizer, Part(1, 0, [([9], [1, 2], -1), ([1, 2], [3, 4], 1)], [], finish_reason="stop"))
    assert text == "123"
    assert seen == [([9], [1, 2], False), ([1, 2], [3, 4], True)]


def test_logprobs_name_the_token_and_its_alternatives() -> None:
    from builder.repository.models.detokenize import describe_logprobs

    tokenizer: Any = SimpleNamespace(decode=lambda ids: f"<{ids[0]}>")
    (item,) = json.loads(describe_logprobs(tokenizer, [7], [{"3": -2.0, "7": -0.5}]))
    assert (item["token_id"], item["token"], item["logprob"]) == (7, "<7>", -0.5)
    assert [top["token_id"] for top in item["top"]] == [7, 3]
    assert describe_logprobs(tokenizer, [7], []) == ""


def loaded_by(model: str) -> set[str]:
    """What importing one of the models imports."""
    code = (
        "import sys, types; fake = types.ModuleType('triton_python_backend_utils'); sys.modules[fake.__name__] = fake; "
        f"fake.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1; import builder.repository.models.{model}; print(*sys.modules)"
    )
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("model", ["tokenize", "detokenize"])
def test_the_models_around_decode_start_without_torch_and_grpc(model: str) -> None:
    assert loaded_by(model) & {"torch", "grpc", "transformers", "opentelemetry"} == set()


def test_nobody_asks_triton_about_cancellation_after_the_final_response(make_request: Any) -> None:
    from builder.repository.models.answer import Answer

    sender = make_request().sender
    answer = Answer(sender, "r", stream=True, version="1")
    sender.cancelled = True
    assert answer.consumer_gone()
    answer.add(Output("r", (5,), finish_reason=FinishReason.STOP))
    assert not answer.consumer_gone()  # the stand-in, like tritonserver, would crash


def test_what_a_request_used_is_in_the_ledger_before_its_last_chunk_leaves(
    decode: Any, engine: ScriptedEngine, make_request: Any, tmp_path: Path
) -> None:
    request = asked(make_request, Options(tenant="search"))
    decode.execute([request])
    engine.emit(0, 5, final=True)
    assert request.sender.final.wait(20)
    (segment,) = (tmp_path / ".ledger" / "p").iterdir()
    (record,) = map(json.loads, segment.read_text().splitlines())
    assert (record["tenant"], record["model"], record["version"], record["output"], record["rejected"]) == ("search", "p", "4", 2, 2)


def test_a_failed_request_that_used_nothing_has_no_record(decode: Any, engine: ScriptedEngine, make_request: Any, tmp_path: Path) -> None:
    request = asked(make_request, Options())
    decode.execute([request])
    engine.emit(0, final=True, finish_reason=FinishReason.ERROR, usage=None, stats=None, error="unlucky")
    assert request.sender.final.wait(20)
    assert list((tmp_path / ".ledger" / "p").iterdir()) == []


def test_a_model_that_is_unloaded_seals_its_ledger(decode: Any, engine: ScriptedEngine, make_request: Any, tmp_path: Path) -> None:
    decode.execute([asked(make_request, Options())])
    engine.emit(0, 5, final=True)
    decode.finalize()
    assert [path.suffix for path in (tmp_path / ".ledger" / "p").iterdir()] == [".jsonl"]


def test_a_request_on_the_control_side_of_a_rollout_is_decoded_plainly(decode: Any, engine: ScriptedEngine, make_request: Any) -> None:
    for percent, speculation, side in ((0, False, "control"), (100, True, "")):
        decode._speculation = Speculation(rollout=percent)
        decode.execute([asked(make_request, Options())])
        submitted = engine.submitted[-1][0]
        assert (submitted.speculation, submitted.rollout_arm) == (speculation, side)


def test_where_nothing_is_traced_the_engine_tells_nobody_of_its_steps_and_opentelemetry_is_not_imported(
    decode: Any, engine: ScriptedEngine, make_request: Any
) -> None:
    request = asked(make_request, Options(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    decode.execute([request])
    engine.emit(0, 5, final=True)
    assert request.sender.final.wait(20)
    assert engine.step_observer is None
    assert "opentelemetry.sdk" not in loaded_by("decode")
    assert part_of(request.sender.responses[0]).traceparent == ""


def test_a_traced_request_is_followed_from_decode_to_detokenize(
    tmp_path: Path, engine: ScriptedEngine, make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.repository.models.decode import TritonPythonModel

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")  # nobody listens
    sections = {"metadata": {"name": "p", "owner": "o"}, "target": {"weights": "w.gguf"}, "tracing": {"sample": 0.0}}
    spec = PipelineSpec.model_validate(sections)

    class Model(TritonPythonModel):
        load = staticmethod(lambda folder, observer: engine)
        read_spec = staticmethod(lambda folder: spec)

    model = Model()
    model.initialize({"model_repository": str(tmp_path / "p_decode"), "model_version": "4", "model_name": "p_decode"})
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    requests = [asked(make_request, Options(traceparent=given)) for given in (traceparent, None)]
    model.execute(requests)
    assert engine.step_observer.active
    for number, request in enumerate(requests):
        engine.emit(number, 5, final=True)
        assert request.sender.final.wait(20)
    assert part_of(requests[0].sender.responses[0]).traceparent.startswith(traceparent[:36])
    assert part_of(requests[1].sender.responses[0]).traceparent == ""  # not sampled
    assert not engine.step_observer.active
    model.finalize()
