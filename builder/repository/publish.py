"""Publish: stage a version beside the others, then rename it into place."""

from __future__ import annotations

import dataclasses
import json
import py_compile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.files import copy_tree, files_below, sha256, sync_folder
from builder.repository.ensemble import ModelNames
from builder.repository.go_live import go_live
from builder.repository.layout import SPEC_FILE, TOKENIZER_FOLDER
from builder.repository.live import previous_version, recover
from builder.repository.lock import BUILD, locked
from builder.repository.manifest import Manifest, fingerprint, now, tool_versions
from builder.repository.rollback import LOCK_WAIT
from builder.repository.server_group import Server
from builder.repository.version_history import PUBLISH, has_served, history
from builder.repository.versions import Version, highest_number, remove, remove_staging, staging_folder, versions

KEEP = 5  # versions, as versions.keep says unless told otherwise


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


def publish(
    repository: Path,
    release: Release,
    check: Check | None = None,
    *,
    servers: Sequence[Server] = (),
    keep: int = KEEP,
    promote: bool = True,
) -> tuple[Version, bool]:
    """The version and whether it was there already (the newest has the same fingerprint).

    `check` gets the staged `<p>_decode` folder before anything is visible: what it returns joins the manifest's results,
    what it writes there joins the version, and its exception stops the publish. Then the version goes live, in `servers` too
    (without `promote` only where nothing is live), and the oldest beyond `keep` are removed. Nothing of a publish that failed or was
    killed is taken for a version: the folders are renamed ensemble last, and whatever is incomplete is removed by the next publish,
    rollback or serve.
    Raises RepositoryError (locked, no space, no permission); CheckError when a server cannot load the version, which then
    stays in the repository without being live.
    """
    pipeline = release.pipeline
    with locked(repository, pipeline, BUILD):
        remove_staging(repository, pipeline)
        published = find_published(repository, pipeline, release.fingerprint)
        if published:
            return published, True
        try:
            _stage(repository, release, check)
            with locked(repository, pipeline, wait=LOCK_WAIT):
                live = recover(repository, pipeline)
                version = Version(repository, pipeline, highest_number(repository, pipeline) + 1)
                _move_into_place(version)
                if promote or live is None:
                    go_live(version, servers, action=PUBLISH)
                    live = version
                _prune(live, keep)
        except OSError as error:
            where = str(error.filename or repository)
            raise RepositoryError(
                f"cannot be written ({error.strerror or error})", where=where, mend="Free space or mend permissions"
            ) from error
        finally:  # Ctrl-C included
            remove_staging(repository, pipeline)
        return version, False


def resume(version: Version, servers: Sequence[Server] = ()) -> int:
    """The live version's number, after `version` went live if a killed publish had left it just short of that.

    A version that was live before, or was tried as a canary, and was taken back stays back.
    """
    repository, pipeline = version.repository, version.pipeline
    with locked(repository, pipeline, wait=LOCK_WAIT):
        live = recover(repository, pipeline)
        if live is None or (live.number < version.number and not has_served(history(repository, pipeline), version.number)):
            go_live(version, servers, action=PUBLISH, why="a publish that did not end")
            return version.number
        return live.number


def _prune(live: Version, keep: int) -> None:
    """Remove the oldest versions beyond `keep`; never the live one nor the one before it."""
    found = versions(live.repository, live.pipeline)
    previous = previous_version(live.repository, live.pipeline, live)
    for version in found[: max(0, len(found) - keep)]:
        if version.number not in (live.number, previous.number if previous else None):
            remove(version)


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
        # No hard links: each new one changes the times of a file, and Triton would load every version anew that has it
        copy_tree(source, staging / names.decode / name)
    results = {**release.results, **(check(staging / names.decode) if check else {})}
    _compile(staging)
    manifest = Manifest(release.pipeline, release.fingerprint, release.fingerprints, release.spec, results=results)
    files = {path.relative_to(staging).as_posix(): sha256(path) for path in files_below(staging)}
    dataclasses.replace(manifest, files=files, tools=tool_versions(), created=now()).write(staging / names.decode)


def _compile(folder: Path) -> None:
    """Else the first import would write the bytecode, and Triton would take the version for a changed one and load it a second time."""
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    for file in files_below(folder):
        if file.suffix == ".py":
            py_compile.compile(str(file), dfile=file.name, doraise=True, invalidation_mode=mode)


def _move_into_place(version: Version) -> None:
    staging = staging_folder(version.repository, version.pipeline)
    for model, folder in version.folders.items():
        folder.parent.mkdir(exist_ok=True)
        (staging / model).rename(folder)
        sync_folder(folder.parent)
