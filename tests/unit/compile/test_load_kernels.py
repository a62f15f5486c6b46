"""The kernel library in a process that opens several versions, each with its copy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.runtime.runners import torch_aot
from builder.runtime.runners.torch_aot import load_kernels


def test_copies_of_one_library_are_loaded_once_and_another_library_is_loaded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(torch_aot, "_loaded_kernels", set())
    for name, content in (("first", b"1"), ("copy", b"1"), ("other", b"2")):
        (tmp_path / name).write_bytes(content)
        load_kernels(tmp_path / name)
    assert [Path(path).name for path in loaded] == ["first", "other"]
