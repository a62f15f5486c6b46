"""Which versions of a pipeline are complete, and the removal of what a killed publish left."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.ensemble import ModelNames
from builder.repository.manifest import FILE_NAME, Manifest, read_manifest


@dataclass(frozen=True)
class Version:
    """Version `number` is the folder of that number in each of the pipeline's four models."""

    repository: Path
    pipeline: str
    number: int

    @property
    def folders(self) -> dict[str, Path]:
        return {model: self.repository / model / str(self.number) for model in ModelNames.of(self.pipeline).publish_order()}

    @property
    def decode_folder(self) -> Path:
        return self.folders[ModelNames.of(self.pipeline).decode]

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.decode_folder)

    @property
    def complete(self) -> bool:
        return all(folder.is_dir() for folder in self.folders.values()) and (self.decode_folder / FILE_NAME).is_file()


def versions(repository: Path, pipeline: str) -> list[Version]:
    """Complete versions, oldest first."""
    found = (Version(repository, pipeline, number) for number in _numbers(repository, pipeline))
    return [version for version in found if version.complete]


def newest(repository: Path, pipeline: str) -> Version:
    """RepositoryError when nothing is published."""
    found = versions(repository, pipeline)
    if not found:
        what = f"no version of {pipeline} is published"
        raise RepositoryError(what, where=str(repository), mend="Run `builder build` first, or name the folder with --repository")
    return found[-1]


def find_version(repository: Path, pipeline: str, number: int) -> Version:
    """RepositoryError, with those there are, when there is no such complete version."""
    found = versions(repository, pipeline)
    for version in found:
        if version.number == number:
            return version
    known = ", ".join(str(version.number) for version in found) or "none"
    raise RepositoryError(f"there is no version {number} of {pipeline}", where=str(repository), mend=f"Versions there are: {known}")


def remove(version: Version) -> None:
    """The ensemble's folder first: what is left if this is killed is no version any more."""
    for folder in reversed(version.folders.values()):
        shutil.rmtree(folder, ignore_errors=True)


def highest_number(repository: Path, pipeline: str) -> int:
    return max(_numbers(repository, pipeline), default=0)


def staging_folder(repository: Path, pipeline: str) -> Path:
    """Inside the repository, so that a rename into place stays on one file system; hidden, and no model for Triton."""
    return repository / f".{pipeline}.staging"


def remove_leftovers(repository: Path, pipeline: str) -> None:
    """Delete version folders that lack a part. Only under the lock: a version on its way into place looks the same."""
    for number in _numbers(repository, pipeline):
        version = Version(repository, pipeline, number)
        if not version.complete:
            remove(version)


def remove_staging(repository: Path, pipeline: str) -> None:
    """Only under the build lock: a build in progress looks the same."""
    shutil.rmtree(staging_folder(repository, pipeline), ignore_errors=True)


def _numbers(repository: Path, pipeline: str) -> list[int]:
    names = {
        folder.name
        for model in ModelNames.of(pipeline).publish_order()
        for folder in (repository / model).glob("[1-9]*")
        if folder.name.isdecimal() and folder.is_dir()
    }
    return sorted(map(int, names))
