"""Engine folders and the cache they lie in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from builder.compile.cache import cached_folder
from builder.compile.torch_aot.folder import EngineInfo, read_info, write_folder
from builder.compile.torch_aot.library import build_library
from builder.errors import BuildError, EngineError
from builder.runtime.runners.torch_aot import load_runner
from builder.weights import ModelConfig

CONFIG = ModelConfig("llama", 64, 128, 2, 4, 2, 16, 320, 512, 1e-5, 10000.0, eos_token_ids=(1, 2))
INFO = EngineInfo("draft", CONFIG, "int4", "package:x/y.gguf", "abc", 32, True, {"head": 0.1})


def test_every_tensor_starts_on_a_cache_line_and_reads_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(5).to(torch.uint8), "b": torch.randn(3, 7), "c": torch.randn(2, 2).bfloat16()}
    write_folder(tmp_path / "engine", INFO, tensors)
    path = tmp_path / "engine" / "weights.safetensors"
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert all((8 + length + header[name]["data_offsets"][0]) % 64 == 0 for name in tensors)
    with safe_open(path, "pt") as file:
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())


def test_engine_json_reads_back(tmp_path: Path) -> None:
    write_folder(tmp_path, INFO, {})
    assert read_info(tmp_path) == INFO


def test_an_engine_of_another_format_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, INFO, {})
    path = tmp_path / "engine.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 999'))
    with pytest.raises(EngineError, match="another format"):
        read_info(tmp_path)


def test_a_missing_engine_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.json: the engine cannot be read"):
        read_info(tmp_path)


def test_truncated_weights_are_one_clear_error(tmp_path: Path, library: Path) -> None:
    write_folder(tmp_path, INFO, {"embed": torch.zeros(320, 64)})
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(EngineError, match="the weights are truncated"):
        load_runner(tmp_path, library, max_seq_len=64)


def test_a_cached_folder_is_filled_once(tmp_path: Path) -> None:
    calls = []
    for _ in range(2):
        folder = cached_folder(tmp_path, "x", lambda folder: calls.append(folder) or (folder / "f").touch())  # type: ignore[func-returns-value]
    assert len(calls) == 1
    assert [path.name for path in folder.iterdir()] == ["f"]


def test_a_fill_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder(tmp_path, "x", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="TANDEM_CACHE"):
        cached_folder(tmp_path / "file", "x", lambda _: None)


def test_a_missing_compiler_says_how_to_install_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="apt-get install"):
        build_library(tmp_path)
