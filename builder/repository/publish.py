"""Publish: stage a version beside the others, then rename it into place."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.repository import config_pbtxt
from builder.repository.ensemble import ModelNames, model_configs
from builder.repository.files import files_below, link_tree, sha256, sync_folder
from builder.repository.layout import SPEC_FILE, TOKENIZER_FOLDER
from builder.repository.lock import locked
from builder.repository.manifest import Manifest, fingerprint, now, tool_versions
from builder.repository.versions import Version, highest_number, remove_leftovers, staging_folder, versions


@dataclass(frozen=True)
class Release:
    """What a build hands over. `tokenizer` is text by file name; `engines` are folders by their name in `<p>_decode/N/`."""

    pipeline: str
    spec: Mapping[str, Any]  # the resolved pipeline.yaml
    fingerprints: Mapping[str, str]  # of weights, tokenizer, engines
    tokenizer: Mapping[str, str]
    engines: Mapping[str, Path]
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.spec, self.fingerprints)


Check = Callable[[Path], Mapping[str, Any]]


def find_published(repository: Path, pipeline: str, release_fingerprint: str) -> Version | None:
    """The newest version, if it was made of exactly this."""
    found = versions(repository, pipeline)
    return found[-1] if found and found[-1].manifest.fingerprint == release_fingerprint else None


def publish(repository: Path, release: Release, check: Check | None = None) -> tuple[Version, bool]:
    """The version and whether it was there already (the newest has the same fingerprint).

    `check` gets the staged `<p>_decode` folder before anything is visible: what it returns joins the manifest's results,
    and its exception stops the publish. Nothing of a publish that failed or was killed is taken for a version: the
    folders are renamed ensemble last, and whatever is incomplete is removed by the next publish or serve.
    Raises RepositoryError (locked, no space, no permission).
    """
    with locked(repository, release.pipeline):
        remove_leftovers(repository, release.pipeline)
        published = find_published(repository, release.pipeline, release.fingerprint)
        if published:
            return published, True
        version = Version(repository, release.pipeline, highest_number(repository, release.pipeline) + 1)
        try:
            _stage(repository, release, check)
            _move_into_place(version)
        except OSError as error:
            remove_leftovers(repository, release.pipeline)
            where = str(error.filename or repository)
            raise RepositoryError(
                f"cannot be written ({error.strerror or error})", where=where, mend="Free space or mend permissions"
            ) from error
        except BaseException:  # Ctrl-C included
            remove_leftovers(repository, release.pipeline)
            raise
        return version, False


def _stage(repository: Path, release: Release, check: Check | None) -> None:
    names = ModelNames.of(release.pipeline)
    staging = staging_folder(repository, release.pipeline)
    (staging / names.ensemble).mkdir(parents=True)
    for model, entry in ((names.tokenize, "tokenize"), (names.decode, "decode"), (names.detokenize, "detokenize")):
        folder = staging / model
        (folder / TOKENIZER_FOLDER).mkdir(parents=True)
        (folder / "model.py").write_text(f"from builder.repository.models.{entry} import TritonPythonModel as TritonPythonModel\n", "utf-8")
        (folder / SPEC_FILE).write_text(json.dumps(release.spec, indent=2, sort_keys=True) + "\n", "utf-8")
        for name, text in release.tokenizer.items():
            (folder / TOKENIZER_FOLDER / name).write_text(text, "utf-8")
    for name, source in release.engines.items():
        link_tree(source, staging / names.decode / name)
    results = {**release.results, **(check(staging / names.decode) if check else {})}
    manifest = Manifest(release.pipeline, release.fingerprint, release.fingerprints, release.spec, results=results)
    files = {path.relative_to(staging).as_posix(): sha256(path) for path in files_below(staging)}
    dataclasses.replace(manifest, files=files, tools=tool_versions(), created=now()).write(staging / names.decode)


def _move_into_place(version: Version) -> None:
    staging = staging_folder(version.repository, version.pipeline)
    for model, config in model_configs(version.pipeline).items():
        (version.repository / model).mkdir(exist_ok=True)
        config_pbtxt.write(version.repository / model, config)
    for model, folder in version.folders.items():
        (staging / model).rename(folder)
        sync_folder(folder.parent)
    shutil.rmtree(staging, ignore_errors=True)  # the version is complete: what stays is removed next time
