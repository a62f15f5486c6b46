"""Which version is live: the one that the ensemble's config.pbtxt names. That one file, replaced in one rename, decides."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from builder.repository import config_pbtxt, version_history
from builder.repository.ensemble import ModelNames, model_configs
from builder.repository.version_history import PROMOTE, PUBLISH, RECOVER, Event
from builder.repository.versions import Version, newest, remove_leftovers, versions
from builder.spec.versions import Versions


def live_version(repository: Path, pipeline: str) -> Version | None:
    """None when nothing is live: nothing is published, or the live one is damaged. RepositoryError for a broken configuration."""
    folder = repository / ModelNames.of(pipeline).ensemble
    if not (folder / config_pbtxt.FILE_NAME).is_file():
        return None
    named = config_pbtxt.read(folder).version_policy.specific.versions
    found = [version for version in versions(repository, pipeline) if version.number in named]
    return found[-1] if found else None


def serving_version(repository: Path, pipeline: str) -> Version:
    """The live version, or the one that would be: the newest. RepositoryError when nothing is published."""
    return live_version(repository, pipeline) or newest(repository, pipeline)


def previous_version(repository: Path, pipeline: str, live: Version) -> Version | None:
    """The complete version that was live before this one; where the history does not know, the next lower number."""
    found = {version.number: version for version in versions(repository, pipeline) if version.number != live.number}
    known = version_history.before(version_history.history(repository, pipeline), live.number)
    if known in found:
        return found[known]
    return found.get(max((number for number in found if number < live.number), default=-1))


def standby_version(repository: Path, pipeline: str, live: Version) -> Version | None:
    """The version that stays loaded beside `live`: the one before it, where the spec of `live` says so. After a rollback none: what was
    taken back is not gone back to."""
    if not Versions.model_validate(live.manifest.spec.get("versions", {})).standby:
        return None
    came = version_history.came(version_history.history(repository, pipeline), live.number)
    if came is not None and came.action not in (PUBLISH, PROMOTE):
        return None
    return previous_version(repository, pipeline, live)


def write_members(repository: Path, pipeline: str, live: int, loaded: Collection[int] = ()) -> None:
    """Let the members load `live` and the versions in `loaded`. The ensemble, and so what is live, stays as it is."""
    for model, config in model_configs(pipeline, live, loaded).items():
        if model != pipeline:
            (repository / model).mkdir(exist_ok=True)
            config_pbtxt.write(repository / model, config)


def write_ensemble(repository: Path, pipeline: str, live: int) -> None:
    """The moment at which a version goes live, also for a server that starts."""
    config_pbtxt.write(repository / pipeline, model_configs(pipeline, live)[pipeline])


def recover(repository: Path, pipeline: str) -> Version | None:
    """Mend what a killed publish or rollback left, under the lock; the live version.

    Before the rename of the ensemble's configuration the old version is live, after it the new one. Only where the live
    version is gone (or a first publish died just before that rename) the newest one takes its place.
    """
    remove_leftovers(repository, pipeline)
    live = live_version(repository, pipeline)
    found = versions(repository, pipeline)
    if not found:
        return None
    if live is None:
        live = found[-1]
        write_members(repository, pipeline, live.number)
        write_ensemble(repository, pipeline, live.number)
        version_history.record(repository, pipeline, Event(RECOVER, None, live.number, "the live version was missing"))
    write_members(repository, pipeline, live.number)
    return live
