"""Versions that must not stay live: one that fails to load, one that is slow, one that answers wrong."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.drills.repository import release_of
from builder.errors import EngineError
from builder.repository.engine import TARGET, open_engine
from builder.repository.models.folder import read_spec
from builder.repository.publish import publish
from builder.repository.server_group import Server
from builder.repository.versions import Version
from builder.runtime.engine import Engine
from builder.runtime.observer import Observer

FAILS_TO_LOAD, SLOW, WRONG = "fails to load", "loads but is slow", "loads but answers wrong"
KINDS = (FAILS_TO_LOAD, SLOW, WRONG)
DELAY = 0.2  # seconds that the slow version adds to each decode step: several times what a step takes
_MODEL = """\
from builder.drills import bad_versions
from builder.repository.models import decode


class TritonPythonModel(decode.TritonPythonModel):
    load = staticmethod(bad_versions.{load})
"""


class SlowEngine(Engine):
    """Waits before each step."""

    def step(self) -> bool:
        time.sleep(DELAY)
        return super().step()


def load_failing(folder: Path, observer: Observer) -> Engine:  # noqa: ARG001 - takes the place of repository.models.loader.load
    raise EngineError("this version was made to fail", where=str(folder))


def load_slow(folder: Path, observer: Observer) -> Engine:
    """Takes the place of repository.models.loader.load."""
    engine = open_engine(folder, read_spec(folder), observer=observer, version=folder.name)
    engine.__class__ = SlowEngine
    return engine


def publish_bad(good: Version, kind: str, folder: Path, servers: Sequence[Server], *, promote: bool = True) -> Version:
    """Publish a bad copy of `good` in its repository, past the quality gate; it goes live unless `promote` is False. CheckError when a
    server refuses it."""
    engines: dict[str, Path] = {}
    if kind == WRONG:
        engines[TARGET] = folder / "wrong_target"
        write_wrong_target(good.decode_folder, engines[TARGET])
    release = release_of(good, {}, engines)
    release = dataclasses.replace(release, fingerprints={**release.fingerprints, "drill": kind})
    load = {FAILS_TO_LOAD: "load_failing", SLOW: "load_slow"}.get(kind)

    def spoil(staged: Path) -> Mapping[str, Any]:
        if load is not None:
            (staged / "model.py").write_text(_MODEL.format(load=load), encoding="utf-8")
        return {"quality": {"verdict": "skipped"}, "drill": kind}

    version, _ = publish(good.repository, release, spoil, servers=servers, promote=promote)
    return version


def write_wrong_target(decode_folder: Path, folder: Path) -> None:
    """The target of a version with the values of each norm in reverse order: it loads, is as fast, and its text is another."""
    from builder.compile.torch_aot.folder import read_info, write_folder
    from builder.compile.torch_aot.unpacking import read_tensors

    source = decode_folder / TARGET
    tensors = read_tensors(source)
    for name, tensor in tensors.items():
        if "norm" in name:
            tensors[name] = tensor.flip(-1).contiguous()
    shutil.rmtree(folder, ignore_errors=True)
    write_folder(folder, read_info(source), tensors)
