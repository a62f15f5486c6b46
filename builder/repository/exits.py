"""Exit heads and thresholds inside a version, as the decode loop takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder.decoding.exits.confidence import MEASURES
from builder.decoding.exits.rule import ExitLimits
from builder.errors import EngineError
from builder.runtime.exits import ExitHead, ExitPoint, Exits
from builder.runtime.pair_exit import PairExit

EXITS = "exits"  # folder inside a version of `<p>_decode`
CALIBRATION_FILE = "calibration.json"


def read_calibration_file(folder: Path) -> dict[str, Any]:
    """What `builder calibrate` found. EngineError when it is missing or no JSON."""
    path = folder / CALIBRATION_FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"the calibration cannot be read ({error})", where=str(path), mend="Run `builder calibrate` again") from error
    return document


def open_draft_exit(folder: Path, load: Callable[[Path], ExitHead]) -> ExitPoint:
    """The exit that drafts best. Raises as open_exits does."""
    draft = read_calibration_file(folder).get("draft")
    if draft is None:
        what = "the calibration says nothing of drafts"
        raise EngineError(what, where=str(folder / CALIBRATION_FILE), mend="Run `builder calibrate` again, then build")
    return ExitPoint(draft["layer"], load(folder / str(draft["layer"])), draft["threshold"])


def open_exits(folder: Path, load: Callable[[Path], ExitHead]) -> Exits:
    """`folder` as `builder calibrate` makes it; `load` opens one head's folder. EngineError when it cannot be read."""
    found = read_calibration_file(folder)
    points = tuple(
        ExitPoint(entry["layer"], load(folder / str(entry["layer"])), entry["threshold"])
        for entry in found["layers"]
        if entry["threshold"] is not None
    )
    return Exits(points, MEASURES[found["measure"]], _limits(found), found["temperature"])


def open_pair_exit(folder: Path, ends: frozenset[int]) -> PairExit:
    """`folder` as the calibration of two served engines makes it; `ends` are the end-of-sequence tokens. EngineError when it cannot be
    read."""
    found = read_calibration_file(folder)
    (entry,) = found["layers"]
    return PairExit(entry["layer"], found["depth"], entry["threshold"], _limits(found), ends, found["temperature"])


def _limits(found: dict[str, Any]) -> ExitLimits:
    bound = found["bound"]
    return ExitLimits(bound["max_pending"], bound.get("protected_tokens", 1))  # 1: a version built when there were none
