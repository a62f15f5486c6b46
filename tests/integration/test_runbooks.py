"""Every command of ops/runbooks is run, as written, beside a served pipeline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from builder.build import build_pipeline
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from tests.integration.conftest import tiny_spec
from tests.integration.talk import eventually, generate

PAGES = sorted(path for path in (Path(__file__).parents[2] / "ops" / "runbooks").glob("*.md") if path.name != "README.md")
PORTS = {"http": "8000", "grpc": "8001", "metrics": "8002"}  # as the pages write them


def commands(page: Path, mark: str) -> list[str]:
    """Lines of the blocks with this mark; a line that ends with a backslash goes on."""
    blocks = re.findall(rf"^( *)```{mark}\n(.*?)^ *```$", page.read_text(), re.M | re.S)
    return [line.strip() for _, block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_weights: Path) -> Iterator[Triton]:
    """Called smollm2, as on the pages, with two versions and a ledger."""
    folder, ports = tmp_path_factory.mktemp("runbooks"), free_ports()
    (folder / "pipelines").mkdir()
    path = folder / "pipelines" / "smollm2.yaml"
    for draft_tokens in (2, 3):
        spec = tiny_spec("smollm2", tiny_weights, speculation={"max_draft_tokens": draft_tokens}).model_dump(mode="json")
        spec["serving"] |= {f"{name}_port": port for name, port in ports.items()}
        spec["quality"]["suites"] = ["refusals"]
        path.write_text(yaml.safe_dump(spec))
        build_pipeline(path, folder / "model_repository", verify=False)
    with Triton(folder / "model_repository", "smollm2", ports) as server:
        generate(server, text_input="hello", max_tokens=8)
        eventually(lambda: any((folder / "model_repository/.ledger/smollm2").iterdir()))
        yield server


@cache
def run(server: Triton, command: str) -> None:
    for name, port in PORTS.items():
        command = re.sub(rf"(?<=:){port}\b", str(server.ports[name]), command)
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PATH": scripts, "PYTHONPATH": root}
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=server.repository.parent, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_do_what_it_says(page: Path, server: Triton) -> None:
    found = commands(page, "sh")
    assert len(found) >= 4
    for command in found:
        run(server, command)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_long_commands_of_a_page_do_what_it_says(page: Path, server: Triton) -> None:
    for command in commands(page, "sh long"):
        run(server, command)
