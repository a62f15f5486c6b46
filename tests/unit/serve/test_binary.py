from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import builder
from builder.errors import ServeError
from builder.serve.binary import STUB, environment, find_binary, make_backends


def other_triton(root: Path, *, backend: bool = True) -> Path:
    server = root / "bin" / "tritonserver"
    server.parent.mkdir(parents=True)
    server.touch(mode=0o755)
    if backend:
        (root / "backends" / "python").mkdir(parents=True)
        (root / "backends" / "python" / STUB).write_text("stub")
    return server


def test_the_installed_wheel_has_a_server_and_a_stub_for_this_python() -> None:
    binary = find_binary()
    assert os.access(binary.server, os.X_OK)
    assert binary.stub is not None
    assert binary.stub.parent.name == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_given_server_brings_its_own_backends(tmp_path: Path) -> None:
    binary = find_binary(other_triton(tmp_path / "triton"))
    folder = make_backends(binary, tmp_path / "private")
    assert (folder / "python" / STUB).read_text() == "stub"


def test_a_given_server_without_the_python_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="has no python backend"):
        find_binary(other_triton(tmp_path / "triton", backend=False))


def test_a_path_that_is_no_executable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="not an executable file"):
        find_binary(tmp_path / "tritonserver")


def test_the_backend_folder_finds_builder_and_leaves_the_package_alone(tmp_path: Path) -> None:
    binary = find_binary()
    before = sorted((binary.backends / "python").iterdir())
    folder = make_backends(binary, tmp_path)
    assert (folder / "python" / "builder").resolve() == Path(builder.__file__).parent
    assert os.access(folder / "python" / STUB, os.X_OK)
    assert sorted((binary.backends / "python").iterdir()) == before


def test_the_stub_finds_this_interpreter_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    found = environment(find_binary())
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert found["LD_LIBRARY_PATH"].endswith(os.pathsep + "/mine")
    assert "PYTHONPATH" not in found
