"""The demo pipeline as a user drives it: build, serve, curl, generate, metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
import yaml

from builder.serve.ports import free_ports

ROOT = Path(__file__).parents[2]
BUILDER = [str(Path(sys.executable).with_name("builder"))]


def builder(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([*BUILDER, *arguments], cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo pipeline on free ports, without the minutes of alignment."""
    spec = yaml.safe_load((ROOT / "pipelines" / "smollm2.yaml").read_text())
    spec["draft"] = {**spec.get("draft", {}), "alignment": None}
    spec["serving"] = {f"{name}_port": port for name, port in free_ports().items()}
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / "smollm2.yaml").write_text(yaml.safe_dump(spec))
    return folder


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Any]:
    return builder(folder, "build", "smollm2.yaml", "--json")


@pytest.fixture(scope="module")
def ports(folder: Path, built: dict[str, Any]) -> Iterator[dict[str, int]]:
    serving = yaml.safe_load((folder / "smollm2.yaml").read_text())["serving"]
    ports = {name.removesuffix("_port"): port for name, port in serving.items()}
    log = (folder / "serve.log").open("w")
    server = subprocess.Popen([*BUILDER, "serve", "smollm2.yaml"], cwd=folder, stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while not ready(ports["http"]):
        assert server.poll() is None and time.monotonic() < deadline, (folder / "serve.log").read_text()[-3000:]
        time.sleep(0.2)
    yield ports
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) in (0, 143)


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/smollm2/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def generate(ports: dict[str, int], **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{ports['http']}/v2/models/smollm2/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        return dict(json.loads(answer.read()))


def test_a_build_says_what_it_made(built: dict[str, Any]) -> None:
    assert built["version"] == 1 and not built["cached"]
    assert built["engines"]["target"]["weights"] == "bfloat16"
    assert built["engines"]["draft"]["weights"] == "int4"
    assert built["results"]["acceptance"]["length"] > 2.0  # 3.2 measured; an unrelated draft gives 1.0


def test_a_second_build_publishes_nothing(folder: Path, built: dict[str, Any]) -> None:
    again = builder(folder, "build", "smollm2.yaml", "--json")
    assert (again["version"], again["cached"]) == (built["version"], True)


def test_generate_answers_with_text_usage_and_decode_stats(ports: dict[str, int]) -> None:
    answer = generate(ports, text_input="The capital of France is", max_tokens=16, temperature=0)
    assert answer["text_output"].startswith(" Paris")
    assert answer["finish_reason"] == "length"
    assert json.loads(answer["usage"])["completion_tokens"] == 16
    stats = json.loads(answer["decode_stats"])
    assert stats["optimisation"] == "speculative"
    assert sum(stats["acceptance_histogram"]) == stats["num_spec_steps"] > 0


def test_speculation_changes_no_token_through_the_whole_ensemble(ports: dict[str, int]) -> None:
    for prompt in ("Once upon a time", "def fibonacci(n):", "Water boils at"):
        on, off = (generate(ports, text_input=prompt, max_tokens=48, temperature=0, speculation=s) for s in ("on", "off"))
        assert on["text_output"] == off["text_output"]
        assert json.loads(off["decode_stats"])["optimisation"] == "plain"


def test_a_seeded_sample_repeats(ports: dict[str, int]) -> None:
    body = {"text_input": "My favourite colour is", "max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 7}
    assert generate(ports, **body)["text_output"] == generate(ports, **body)["text_output"]
    assert generate(ports, **body)["text_output"] != generate(ports, **{**body, "seed": 8})["text_output"]


def test_builder_generate_speaks_to_the_running_server(folder: Path, ports: dict[str, int]) -> None:
    del ports
    spoken = builder(folder, "generate", "smollm2.yaml", "List three colours.", "--json")
    plain = builder(folder, "generate", "smollm2.yaml", "List three colours.", "--speculation", "off", "--json")
    assert spoken["text"] == plain["text"]
    assert spoken["decode_stats"]["target_passes"] < plain["decode_stats"]["target_passes"]


def test_tritonclient_streams_over_grpc_and_reads_the_model_over_http(ports: dict[str, int]) -> None:
    texts: list[str] = []
    errors: list[Exception] = []

    def receive(result: Any, error: Exception | None) -> None:
        if error is not None:
            errors.append(error)
        elif (output := result.as_numpy("text_output")) is not None:
            texts.append(output.reshape(-1)[0].decode())

    client = grpc.InferenceServerClient(f"127.0.0.1:{ports['grpc']}")
    prompt = grpc.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"The capital of France is"], dtype=object))
    client.start_stream(receive)
    client.async_stream_infer("smollm2", [prompt], parameters={"max_tokens": 16, "temperature": 0.0, "stream": True})
    client.stop_stream()
    assert not errors
    assert len(texts) > 1 and "".join(texts).startswith(" Paris")
    metadata = http.InferenceServerClient(f"127.0.0.1:{ports['http']}").get_model_metadata("smollm2")
    assert {output["name"] for output in metadata["outputs"]} >= {"text_output", "finish_reason", "usage", "decode_stats"}


def test_metrics_count_what_was_accepted(ports: dict[str, int]) -> None:
    generate(ports, text_input="One, two, three,", max_tokens=16, temperature=0)
    time.sleep(1)  # counters are flushed a few times a second
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['metrics']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    accepted = [line for line in lines if line.startswith("tandem_spec_decode_num_accepted_tokens{")]
    assert len(accepted) == 1 and float(accepted[0].rsplit(" ", 1)[1]) > 0


def test_an_interrupted_build_leaves_no_version_and_the_next_one_succeeds(folder: Path, built: dict[str, Any]) -> None:
    del built
    repository = folder / "interrupted"
    environment = {**os.environ, "TANDEM_CACHE": str(folder / "cache")}
    command = [*BUILDER, "build", "smollm2.yaml", "--repository", str(repository)]
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((folder / "cache").glob(".*")):  # until something is being compiled
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in log
    assert not list((folder / "cache").glob(".*"))
    assert not list(repository.glob("*/1"))


@pytest.mark.slow
def test_the_p95_of_the_histograms_is_within_one_bucket_of_the_clients_exact_one(folder: Path, ports: dict[str, int]) -> None:
    load = ["--workload", "chat", "--users", "4", "--minutes", "1", "--url", f"127.0.0.1:{ports['http']}", "--json"]
    found = builder(folder, "loadtest", "smollm2.yaml", *load, "--grpc-url", f"127.0.0.1:{ports['grpc']}")["server_p95"]
    assert [(measure["name"], measure["agrees"]) for measure in found] == [("ttft_p95", True), ("e2e_p95", True)], found
