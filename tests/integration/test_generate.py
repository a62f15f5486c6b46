"""`builder generate` with and without a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from tests.integration.conftest import tiny_spec

CODE = "import typer; from builder.cli.generate import generate; typer.run(generate)"


def run(folder: Path, weights: Path, ports: dict[str, int], *arguments: str) -> subprocess.CompletedProcess[str]:
    pipeline = folder / "tiny.yaml"
    spec = tiny_spec("tiny", weights, serving={f"{name}_port": port for name, port in ports.items()})
    pipeline.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    return subprocess.run([sys.executable, "-c", CODE, str(pipeline), *arguments], capture_output=True, text=True, timeout=120)


def test_without_a_server_one_is_started_for_the_call(tmp_path: Path, built_repository: Path, tiny_weights: Path) -> None:
    done = run(tmp_path, tiny_weights, free_ports(), "hello", "--json", "--max-tokens", "8", "--repository", str(built_repository))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"text", "finish_reason", "usage", "decode_stats"}
    assert answer["usage"]["completion_tokens"] <= 8
    assert "starting one for this call" in done.stderr


@pytest.mark.parametrize("speculation", ["on", "off"])
def test_a_running_server_answers_and_the_numbers_follow_on_stderr(
    tmp_path: Path, tiny_server: Triton, tiny_weights: Path, speculation: str
) -> None:
    arguments = ("hello", "--raw", "--max-tokens", "12", "--speculation", speculation)
    done = run(tmp_path, tiny_weights, tiny_server.ports, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "starting one" not in done.stderr
    assert f"decode_stats: {'plain' if speculation == 'off' else 'speculative'}" in done.stderr
