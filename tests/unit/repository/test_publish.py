from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from builder import files
from builder.errors import CheckError, RepositoryError
from builder.repository import publish, version_bench
from builder.repository.lock import BUILD, locked
from builder.repository.publish import Release
from builder.repository.version_bench import read_bench, write_bench
from builder.repository.versions import Version, newest, versions

MODELS = ("p", "p_tokenize", "p_decode", "p_detokenize")


@pytest.fixture
def release(tmp_path: Path) -> Callable[..., Release]:
    engine = tmp_path / "cache" / "target"
    engine.mkdir(parents=True)
    (engine / "weights.safetensors").write_bytes(b"weights")

    def make(weights: str = "w1", **results: Any) -> Release:
        return Release("p", {"metadata": {"name": "p"}}, {"weights": weights}, {"tokenizer.json": "{}"}, {"target": engine}, results)

    return make


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "model_repository"


def publish_in_a_child_that_dies(repository: Path, release: Release, renames: int) -> None:
    """Publish in a process that is gone, without any clean-up, at its n-th rename of a version folder."""
    child = os.fork()
    if child == 0:
        left = renames
        rename = Path.rename

        def dying(self: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return rename(self, target)

        Path.rename = dying
        publish.publish(repository, release)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def leftovers(repository: Path) -> list[str]:
    return sorted(path.name for path in repository.iterdir() if path.name.startswith(".p.") and path.is_dir())


def test_a_version_is_one_folder_in_each_of_the_four_models(repository: Path, release: Callable[..., Release]) -> None:
    version, cached = publish.publish(repository, release(acceptance=0.8))
    assert (version.number, cached) == (1, False)
    for model in MODELS:
        assert [folder.name for folder in (repository / model).iterdir() if folder.is_dir()] == ["1"]
        assert (repository / model / "config.pbtxt").is_file()
    assert version.manifest.results == {"acceptance": 0.8}
    assert set(version.manifest.tools) >= {"builder", "torch", "tritonserver", "python"}
    assert leftovers(repository) == []


def test_the_same_fingerprint_publishes_nothing(repository: Path, release: Callable[..., Release]) -> None:
    publish.publish(repository, release())
    version, cached = publish.publish(repository, release(acceptance=0.1))
    assert (version.number, cached) == (1, True)
    assert publish.publish(repository, release("w2"))[0].number == 2
    assert publish.publish(repository, release("w1"))[0].number == 3  # only the newest counts: going back is a new version


def test_what_is_published_later_touches_no_file_of_a_version(repository: Path, release: Callable[..., Release]) -> None:
    """Triton loads a version anew one of whose files has another time, that of its links included."""

    def times() -> dict[Path, tuple[int, int]]:
        found = [path for folder in version.folders.values() for path in (folder, *folder.rglob("*"))]
        return {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in found}

    version, _ = publish.publish(repository, release("w1"))
    before = times()
    publish.publish(repository, release("w2"))
    assert times() == before
    assert (version.decode_folder / "target" / "weights.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("renames", range(4))
def test_a_killed_publish_leaves_no_version_and_the_next_cleans_up(repository: Path, release: Callable[..., Release], renames: int) -> None:
    publish.publish(repository, release("w1"))
    publish_in_a_child_that_dies(repository, release("w2"), renames)
    assert [version.number for version in versions(repository, "p")] == [1]
    assert not (repository / "p" / "2").exists()
    version, _ = publish.publish(repository, release("w3"))
    assert version.complete
    assert version.manifest.fingerprints == {"weights": "w3"}
    assert {folder.name for model in MODELS for folder in (repository / model).iterdir() if folder.is_dir()} == {"1", str(version.number)}
    assert leftovers(repository) == []


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    repository: Path, release: Callable[..., Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(publish, "copy_tree", full)
    with pytest.raises(RepositoryError, match="No space left on device"):
        publish.publish(repository, release())
    assert versions(repository, "p") == []
    assert leftovers(repository) == []


def test_a_check_that_says_no_stops_the_publish(repository: Path, release: Callable[..., Release]) -> None:
    def refuse(folder: Path) -> dict[str, Any]:
        assert (folder / "target" / "weights.safetensors").is_file()
        raise CheckError("tokens differ")

    with pytest.raises(CheckError):
        publish.publish(repository, release(), refuse)
    assert versions(repository, "p") == []
    assert leftovers(repository) == []


def test_what_a_check_measured_is_in_the_manifest(repository: Path, release: Callable[..., Release]) -> None:
    version, _ = publish.publish(repository, release(seconds=3), lambda folder: {"acceptance": 0.75})
    assert version.manifest.results == {"seconds": 3, "acceptance": 0.75}


def test_two_publishes_at_once_are_refused(repository: Path, release: Callable[..., Release]) -> None:
    with locked(repository, "p", BUILD), pytest.raises(RepositoryError, match="another command is publishing p"):
        publish.publish(repository, release())
    publish.publish(repository, release())


def test_a_file_changed_after_publishing_is_found(repository: Path, release: Callable[..., Release]) -> None:
    version, _ = publish.publish(repository, release())
    version.manifest.check(version.folders)
    (version.folders["p_tokenize"] / "pipeline.json").write_text("{}")
    with pytest.raises(RepositoryError, match=r"p_tokenize/1/pipeline\.json: .*changed"):
        version.manifest.check(version.folders)
    (version.decode_folder / "model.py").unlink()
    with pytest.raises(RepositoryError, match="missing"):
        version.manifest.check(version.folders)


def test_every_file_of_a_version_is_hashed(repository: Path, release: Callable[..., Release]) -> None:
    version, _ = publish.publish(repository, release())
    found = {f"{model}/{path.relative_to(folder)}" for model, folder in version.folders.items() for path in files.files_below(folder)}
    assert set(version.manifest.files) == found - {"p_decode/manifest.json"}


def test_an_empty_repository_names_the_command_that_fills_it(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="builder build"):
        newest(tmp_path, "p")


def test_a_broken_manifest_is_a_repository_error(repository: Path, release: Callable[..., Release]) -> None:
    version, _ = publish.publish(repository, release())
    (version.decode_folder / "manifest.json").write_text('{"pipeline": ')
    with pytest.raises(RepositoryError, match=r"manifest\.json"):
        _ = Version(repository, "p", 1).manifest


def test_a_version_without_one_model_is_no_version(repository: Path, release: Callable[..., Release]) -> None:
    publish.publish(repository, release())
    shutil.rmtree(repository / "p_detokenize" / "1")
    assert versions(repository, "p") == []


def test_the_manifest_is_readable_json_with_the_resolved_spec(repository: Path, release: Callable[..., Release]) -> None:
    version, _ = publish.publish(repository, release())
    manifest = json.loads((version.decode_folder / "manifest.json").read_text())
    assert manifest["spec"] == {"metadata": {"name": "p"}}
    assert manifest["created"].endswith("+00:00")


def test_importing_a_version_s_models_changes_no_file_of_it(
    repository: Path, release: Callable[..., Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton loads a version anew whose folder has changed."""

    def changed() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for folder in version.folders.values() for path in (folder, *folder.rglob("*"))}

    version, _ = publish.publish(repository, release())
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = changed()
    for model in MODELS[1:]:
        SourceFileLoader("model", str(version.folders[model] / "model.py")).get_code("model")
    assert changed() == before
    assert any(path.name == f"model.{sys.implementation.cache_tag}.pyc" for path in before)


def test_what_a_bench_measured_is_kept_beside_the_version_it_was_measured_on(repository: Path, release: Callable[..., Release]) -> None:
    version, _ = publish.publish(repository, release())
    assert read_bench(version) is None
    write_bench(version, dict.fromkeys(version_bench.KEYS, 1) | {"plain_tok_s": 100.5, "peers": ["left out"]})
    assert read_bench(version) == dict.fromkeys(version_bench.KEYS, 1) | {"plain_tok_s": 100.5}
    version.manifest.check(version.folders)
    (repository / ".bench" / "p" / "1.json").write_text("[")
    assert read_bench(version) is None
