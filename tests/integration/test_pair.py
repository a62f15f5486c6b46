"""Our decode loop over two models with the tensorrtllm backend's tensors, under a real tritonserver: what the torch engine says, it says.

The two models are doubles (contract_model.py) with the configurations that `builder build` hands over, but for the backend's name.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from tritonclient.utils import InferenceServerException

from builder.build import build_pipeline
from builder.exits.recipe import CalibrationOptions
from builder.exits.served_calibration import calibrate_engines
from builder.repository.calibrated import find_calibrated
from builder.repository.engine import open_engine
from builder.repository.flag_store import FlagStore
from builder.runtime.engine import Engine
from builder.serve import client
from builder.serve.triton import Triton
from builder.spec import load_pipeline
from tests.integration.conftest import tiny_spec
from tests.integration.pair import PROMPTS, SPECULATION, K, counts, direct, hand_over, load_engines, reference, serving, told
from tests.integration.talk import eventually, generate, refused, settled, total
from tests.unit.tiny_models import make_tiny_model

EXIT_SECTIONS = {  # the engines are doubles: the draft's has more layers than the one that is said here
    "draft": {"weights": "same", "layers": 1},
    "early_exit": {"mode": "answer", "protected_tokens": 2},
    "quality": {"max_disagreement": 0.6, "confidence": 0.6},
    "engine": {"backend": "trtllm-engine", "gpu": {"name": "L4"}, "max_batch_size": 8, "max_seq_len": 64}
    | {"kv_cache": {"memory": "16MiB", "block_size": 32}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft with weights of its own that are the target's: quantised, it is often right."""
    folder = tmp_path_factory.mktemp("pair_weights")
    return make_tiny_model(folder / "target"), make_tiny_model(folder / "draft")


@pytest.fixture(scope="module")
def torch_version(tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path]) -> Path:
    """`torch_decode/1` of the same models, without a prefix cache: behind a cached prompt it would draft the first token too."""
    folder = tmp_path_factory.mktemp("torch")
    engine = {"max_seq_len": 256, "threads": 1, "max_batch_size": 8, "kv_cache": {"memory": "16MiB", "prefix_caching": False}}
    draft = {"weights": str(models[1]), "alignment": None}
    control = {"control": {"adaptive": False}}
    spec = tiny_spec("torch", models[0], draft=draft, engine=engine, speculation=SPECULATION | control)
    (folder / "torch.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    build_pipeline(folder / "torch.yaml", folder / "model_repository", verify=False)
    return folder / "model_repository" / "torch_decode" / "1"


@pytest.fixture(scope="module")
def torch_engine(torch_version: Path) -> Iterator[Engine]:
    spec = load_pipeline(torch_version.parent.parent.parent / "torch.yaml").spec
    engine = open_engine(torch_version, spec)
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def pair_server(tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path], torch_version: Path) -> Iterator[Triton]:
    pause = {"pause_ms": 5}
    repository = hand_over(tmp_path_factory.mktemp("pair"), models, torch_version, "pair", target=pause, draft={})
    with serving(repository, "pair") as server:
        load_engines(server)
        yield server


@pytest.mark.parametrize("speculation", ["on", "off"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_texts_and_counts_are_those_of_the_torch_engine(
    pair_server: Triton, torch_engine: Engine, torch_version: Path, prompt: str, speculation: str
) -> None:
    text, stats = reference(torch_engine, torch_version, prompt, max_tokens=48, ignore_eos=True, speculation=speculation == "on")
    answer = generate(pair_server, text_input=prompt, max_tokens=48, temperature=0, ignore_eos=True, speculation=speculation)
    assert answer["text_output"] == text
    assert counts(told(answer)) == counts(stats)
    assert (stats.num_accepted_draft_tokens > 0) == (speculation == "on")
    assert json.loads(answer["usage"])["completion_tokens"] == 48


def test_eight_streams_at_once_get_what_each_gets_alone(pair_server: Triton, torch_engine: Engine, torch_version: Path) -> None:
    asked: dict[str, str | int | float | bool] = {"max_tokens": 32, "ignore_eos": True}

    def ask(prompt: str) -> list[client.Chunk]:
        return list(client.generate(f"127.0.0.1:{pair_server.ports['grpc']}", "pair", prompt=prompt, parameters=asked))

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(ask, PROMPTS))
    for prompt, chunks in zip(PROMPTS, answers, strict=True):
        text, stats = reference(torch_engine, torch_version, prompt, max_tokens=32, ignore_eos=True)
        assert "".join(chunk.text for chunk in chunks) == text
        assert len(chunks) > 1, "it streams"
        assert counts(chunks[-1].decode_stats or {}) == counts(stats)


def test_a_stop_string_ends_the_text(pair_server: Triton) -> None:
    asked = {"text_input": "hello", "max_tokens": 40, "ignore_eos": True}
    whole = generate(pair_server, **asked)["text_output"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    answer = generate(pair_server, **asked, stop=stop)
    assert (answer["text_output"], answer["finish_reason"]) == (whole[: whole.index(stop)], "stop")


def test_a_sampled_answer_is_repeated_by_its_seed(pair_server: Triton) -> None:
    asked = {"text_input": "once", "max_tokens": 24, "temperature": 1.0, "top_p": 0.95, "ignore_eos": True}
    first, again, other = (generate(pair_server, **asked, seed=seed)["text_output"] for seed in (7, 7, 8))
    assert first == again != other


@pytest.mark.parametrize("speculation", ["on", "off"])
def test_a_cancelled_request_ends_and_so_does_what_it_had_in_flight(pair_server: Triton, speculation: str) -> None:
    url = f"127.0.0.1:{pair_server.ports['grpc']}"
    asked: dict[str, str | int | float | bool] = {"max_tokens": 240, "ignore_eos": True, "speculation": speculation}
    before = total(pair_server, "contract_cancelled", model="pair_target")
    stream = client.generate(url, "pair", prompt="x", parameters=asked, request_id="long")
    next(stream)
    client.cancel(url, "pair", "long")
    assert [chunk.finish_reason for chunk in stream][-1] == "cancelled"
    if speculation == "off":
        eventually(lambda: total(pair_server, "contract_cancelled", model="pair_target") > before)


def test_the_kill_switch_holds_in_flight(pair_server: Triton, torch_engine: Engine, torch_version: Path) -> None:
    store = FlagStore(pair_server.repository, "pair")
    asked: dict[str, str | int | float | bool] = {"max_tokens": 200, "ignore_eos": True}
    text, undisturbed = reference(torch_engine, torch_version, "1 2 3", max_tokens=200, ignore_eos=True)
    running = client.generate(f"127.0.0.1:{pair_server.ports['grpc']}", "pair", prompt="1 2 3", parameters=asked)
    chunks = [next(running) for _ in range(3)]
    store.set({"speculation": False}, "test")
    chunks += list(running)
    stats = chunks[-1].decode_stats or {}
    assert "".join(chunk.text for chunk in chunks) == text
    assert 0 < stats["num_draft_tokens"] < undisturbed.num_draft_tokens
    assert stats["state"] == "plain"
    assert told(generate(pair_server, text_input="x", max_tokens=8, ignore_eos=True))["num_draft_tokens"] == 0
    store.set({"speculation": None}, "the test is over")
    eventually(lambda: told(generate(pair_server, text_input="x", max_tokens=8, ignore_eos=True))["num_draft_tokens"] > 0)


def test_metrics_and_ledger_have_what_the_answers_say(pair_server: Triton) -> None:
    drafts, accepted = (f"tandem_spec_decode_num_{what}" for what in ("drafts", "accepted_tokens"))
    before = {name: settled(pair_server, name) for name in (drafts, accepted)}
    answer = generate(pair_server, text_input="hello", max_tokens=32, ignore_eos=True, tenant="search")
    stats, usage = told(answer), json.loads(answer["usage"])
    eventually(lambda: total(pair_server, drafts) - before[drafts] == stats["num_spec_steps"])
    eventually(lambda: total(pair_server, accepted) - before[accepted] == stats["num_accepted_draft_tokens"])
    eventually(lambda: total(pair_server, "tandem_tokens", token_type="output", tenant="search") == usage["completion_tokens"])
    eventually(lambda: total(pair_server, "tandem_ledger_records") > 0)
    eventually(lambda: total(pair_server, "tandem_requests", state="running") == 0)


def test_bad_requests_are_refused_and_the_server_lives_on(pair_server: Triton) -> None:
    assert "logprobs are not available" in refused(pair_server, {"text_input": "a", "logprobs": 1})
    assert "at most 255 fit" in refused(pair_server, {"text_input": "x" * 4000})
    assert generate(pair_server, text_input="ok", max_tokens=2)["finish_reason"] in ("length", "stop")


def test_the_double_refuses_what_the_backend_refuses(pair_server: Triton) -> None:
    """Else nothing above would say that the tensors are right."""
    whole = {"input_ids": [[1, 2]], "input_lengths": [[2]], "request_output_len": [[1]]}
    wrong = {
        "larger than maximum": {"draft_input_ids": [[1] * (K + 1)]},
        "disagree": {"input_lengths": [[3]]},
        "data-type": {"input_ids": [[1.0, 2.0]]},
        "unexpected inference input": {"random_seed": [[1]]},
    }
    for words, change in wrong.items():
        with pytest.raises(InferenceServerException, match=words):
            direct(pair_server, whole | change)
    assert len(direct(pair_server, whole).as_numpy("output_ids")[0, 0]) == 1


def test_a_useless_draft_is_given_up(
    tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path], torch_version: Path, torch_engine: Engine
) -> None:
    folder = tmp_path_factory.mktemp("useless")
    slow = {"pause_ms": 3}
    repository = hand_over(folder, models, torch_version, "useless", adaptive=True, target=slow, draft=slow | {"shift": 1})
    with serving(repository, "useless") as server:
        load_engines(server)
        for _ in range(4):
            answer = generate(server, text_input="hello", max_tokens=200, ignore_eos=True)
        text, _ = reference(torch_engine, torch_version, "hello", max_tokens=200, ignore_eos=True)
        assert answer["text_output"] == text
        assert told(answer)["num_accepted_draft_tokens"] == 0
        eventually(lambda: total(server, "tandem_state_transitions", to="plain") > 0)
        assert told(answer)["num_spec_steps"] < 60, "most of the answer is decoded plainly"


def test_calibrated_on_the_served_engines_tokens_leave_unverified_until_a_request_or_a_flag_says_no(
    tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path], torch_version: Path, torch_engine: Engine
) -> None:
    folder, asked = tmp_path_factory.mktemp("exits"), {"text_input": "hello", "max_tokens": 40, "ignore_eos": True}
    hand_over(folder, models, torch_version, "exits", sections=EXIT_SECTIONS)
    with serving(folder / "exits" / "model_repository", "exits") as server:
        load_engines(server)
        assert told(generate(server, **asked))["early_exit"] == "none"
        address = f"127.0.0.1:{server.ports['grpc']}"
        path, cache = folder / "exits.yaml", folder / "cache"
        found = calibrate_engines(path, CalibrationOptions(answers=20), address=address, cache=cache).found
    assert found["held_out"]["disagreement"] <= EXIT_SECTIONS["quality"]["max_disagreement"]
    calibrated = find_calibrated(load_pipeline(path), cache)
    assert calibrated is not None and calibrated.record.bounded
    repository = hand_over(folder, models, torch_version, "exits", sections=EXIT_SECTIONS, exits=calibrated)
    with serving(repository, "exits") as server:
        load_engines(server)
        stats = told(generate(server, **asked))
        assert (stats["optimisation"], stats["early_exit"]) == ("early_exit", "on")
        assert set(stats["exit_layers"]) == {"1", "2"} and sum(stats["exit_layers"].values()) == 40
        eventually(lambda: total(server, "tandem_early_exit_tokens", layer="1") == stats["exit_layers"]["1"])
        declined = generate(server, **asked, early_exit="off")
        text, plain = reference(torch_engine, torch_version, "hello", max_tokens=40, ignore_eos=True)
        assert declined["text_output"] == text and counts(told(declined)) == counts(plain)
        assert told(declined)["early_exit"] == "declined"
        FlagStore(server.repository, "exits").set({"early_exit": False}, "test")
        eventually(lambda: told(generate(server, **asked))["early_exit"] == "operator")
        assert generate(server, **asked)["text_output"] == text


@pytest.mark.slow
def test_a_minute_of_streams_leavers_and_flags_changes_no_answer(pair_server: Triton, torch_engine: Engine, torch_version: Path) -> None:
    """Calls between models of one server are where tritonserver has hung and ended before (docs/decisions.md)."""
    until, wrong, answered, left = time.monotonic() + 60, list[str](), list[str](), list[str]()
    asked: dict[str, str | int | float | bool] = {"max_tokens": 40, "ignore_eos": True}
    texts = {prompt: reference(torch_engine, torch_version, prompt, max_tokens=40, ignore_eos=True)[0] for prompt in PROMPTS}

    def stream(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < until:
            prompt = dice.choice(PROMPTS)
            chunks = client.generate(f"127.0.0.1:{pair_server.ports['grpc']}", "pair", prompt=prompt, parameters=asked, timeout=30)
            if dice.random() < 0.1:
                next(chunks)
                chunks.close()
                left.append(prompt)
                continue
            (answered if "".join(chunk.text for chunk in chunks) == texts[prompt] else wrong).append(prompt)

    def change_flags() -> None:
        store = FlagStore(pair_server.repository, "pair")
        while time.monotonic() < until:
            for speculation in (False, None):
                store.set({"speculation": speculation}, "test")
                time.sleep(3)

    changes = threading.Thread(target=change_flags)
    changes.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(stream, range(8)))  # raises what a stream raised
    changes.join()
    assert not wrong
    assert len(answered) > 50 and len(left) > 5
    eventually(lambda: total(pair_server, "tandem_requests", state="running") == 0)
