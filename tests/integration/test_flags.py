"""Flags under a running tritonserver: requests in flight, new ones, one tenant's, and a file that broke."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.repository.flag_store import FlagStore
from builder.serve import client
from builder.serve.client import Chunk
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from tests.integration.conftest import tiny_spec
from tests.integration.talk import eventually, generate, total

CODE = "from builder.cli.main import main; main()"
# The tiny model answers in less time than an operator needs to type: each pass takes 60 ms longer here
SLOW_MODEL = """\
import time

from builder.repository.models import decode, loader


def load(folder, sink):
    report = sink.pass_done

    def pass_done(*numbers):
        time.sleep(0.06)
        report(*numbers)

    sink.pass_done = pass_done
    return loader.load(folder, sink)


class TritonPythonModel(decode.TritonPythonModel):
    load = staticmethod(load)
"""
ASKED: dict[str, str | int | float | bool] = {"max_tokens": 160, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory, built_repository: Path) -> Iterator[Triton]:
    repository = tmp_path_factory.mktemp("slow") / "model_repository"
    shutil.copytree(built_repository, repository)
    (repository / "tiny_decode" / "1" / "model.py").write_text(SLOW_MODEL)
    with Triton(repository, "tiny", free_ports()) as server:
        yield server


@pytest.fixture
def store(slow_server: Triton) -> Iterator[FlagStore]:
    store = FlagStore(slow_server.repository, "tiny")
    yield store
    store.set({"speculation": None, "all": None}, "the test is over")
    store.set({"speculation": None, "all": None}, "the test is over", "search")
    eventually(lambda: flag(slow_server) == 1)


def flag(server: Triton) -> float:
    return total(server, "tandem_flag", name="speculation")


def stats(server: Triton, **parameters: Any) -> dict[str, Any]:
    answer = generate(server, text_input="x", max_tokens=8, ignore_eos=True, **parameters)
    return dict(json.loads(answer["decode_stats"]))


def stream(server: Triton) -> Iterator[Chunk]:
    return client.generate(f"127.0.0.1:{server.ports['grpc']}", "tiny", prompt="1 2 3 4 5 6 7 8", parameters=ASKED)


def flags(folder: Path, server: Triton, weights: Path, *arguments: str) -> dict[str, Any]:
    """`builder flags`, as an operator runs it."""
    pipeline = folder / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", weights).model_dump(mode="json")))
    verb, *rest = arguments
    command = [sys.executable, "-c", CODE, "flags", verb, str(pipeline), *rest, "--repository", str(server.repository), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_speculation_stops_and_resumes_under_a_running_request(
    slow_server: Triton, store: FlagStore, tiny_weights: Path, tmp_path: Path
) -> None:
    whole = list(stream(slow_server))
    undisturbed = whole[-1].decode_stats
    running = stream(slow_server)
    chunks = [next(running) for _ in range(3)]
    flags(tmp_path, slow_server, tiny_weights, "set", "speculation=off", "--reason", "test")
    eventually(lambda: flag(slow_server) == 0)
    new = stats(slow_server, speculation="on")
    assert (new["optimisation"], new["state"], new["num_draft_tokens"]) == ("plain", "plain", 0)
    flags(tmp_path, slow_server, tiny_weights, "set", "speculation=on", "--reason", "test")
    eventually(lambda: flag(slow_server) == 1)
    chunks += list(running)
    switched = chunks[-1].decode_stats
    assert undisturbed is not None
    assert switched is not None
    assert "".join(chunk.text for chunk in chunks) == "".join(chunk.text for chunk in whole)
    assert switched["num_draft_tokens"] < undisturbed["num_draft_tokens"]
    assert switched["target_passes"] > undisturbed["target_passes"]
    assert stats(slow_server)["state"] == "speculating"
    history = flags(tmp_path, slow_server, tiny_weights, "history")["history"]
    assert [(change["old"], change["new"]) for change in history] == [("default", "off"), ("off", "on")]


def test_the_kill_switch_of_a_tenant_leaves_the_others_alone(slow_server: Triton, store: FlagStore) -> None:
    store.set({"all": False}, "test", "search")
    eventually(lambda: stats(slow_server, tenant="search")["state"] == "plain")
    assert stats(slow_server, tenant="support")["optimisation"] == "speculative"
    assert flag(slow_server) == 1


def test_a_broken_file_keeps_the_last_good_flags_and_raises_the_metric(slow_server: Triton, store: FlagStore) -> None:
    assert total(slow_server, "tandem_flags_broken") == 0
    store.set({"all": False}, "test")
    eventually(lambda: flag(slow_server) == 0)
    good = store.path.read_text()
    store.path.write_text(good[: len(good) // 2])
    eventually(lambda: total(slow_server, "tandem_flags_broken") == 1)
    assert stats(slow_server)["optimisation"] == "plain"
    store.path.write_text(good)
    eventually(lambda: total(slow_server, "tandem_flags_broken") == 0)
