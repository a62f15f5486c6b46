"""The stamp beside an engine, with stand-ins for the GPU host's libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.compile.trtllm import host_stamp


def host(monkeypatch: pytest.MonkeyPatch, tensorrt: str = "10.14.1.48", capability: tuple[int, int] = (9, 0)) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__=tensorrt))
    monkeypatch.setitem(sys.modules, "tensorrt_llm", SimpleNamespace(__version__="1.2.1"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda: capability)))


def test_an_engine_passes_on_the_host_that_built_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host(monkeypatch)
    assert host_stamp.main(["write", str(tmp_path)]) == 0
    assert host_stamp.main(["check", str(tmp_path)]) == 0


@pytest.mark.parametrize("change", [{"tensorrt": "10.13.0"}, {"capability": (8, 0)}])
def test_an_engine_of_another_tensorrt_or_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]
) -> None:
    host(monkeypatch)
    host_stamp.main(["write", str(tmp_path)])
    host(monkeypatch, **change)  # type: ignore[arg-type]
    assert host_stamp.main(["check", str(tmp_path)]) == 1
    assert "Run build_engines.sh here" in capsys.readouterr().err


def test_an_engine_without_a_stamp_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host(monkeypatch)
    assert host_stamp.main(["check", str(tmp_path)]) == 1


@pytest.mark.parametrize("arguments", [[], ["write"], ["compare", "x"]])
def test_another_use_is_refused(arguments: list[str]) -> None:
    assert host_stamp.main(arguments) == 2
