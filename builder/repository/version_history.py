"""Which version went live when, by whom and why: one JSON line each, only ever appended."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.repository import flag_history, json_lines
from builder.repository.manifest import now

FOLDER = ".versions"  # hidden: no model for Triton

PUBLISH, ROLLBACK, PROMOTE, RECOVER, FAILED = "publish", "rollback", "promote", "recover", "failed"
CANARY, ABORT = "canary", "abort"  # a version begins to answer a share of the requests; it was taken back

UNCHANGED = (FAILED, CANARY, ABORT)  # what was live before is live after them


@dataclass(frozen=True)
class Event:
    """`before` was live until then (None: nothing), `after` is from then on. A failed one changed nothing.

    Of a canary `before` is live and `after` is tried; when it is taken back, the other way round. `measured` has the numbers that a
    decision was made of.
    """

    action: str
    before: int | None
    after: int
    why: str = ""
    measured: dict[str, Any] = field(default_factory=dict)
    when: str = field(default_factory=now)
    who: str = field(default_factory=flag_history.who)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def record(repository: Path, pipeline: str, event: Event) -> None:
    """Append and wait until it is on disk."""
    folder = repository / FOLDER
    folder.mkdir(exist_ok=True)
    json_lines.append(_path(repository, pipeline), json_lines.line(event.to_json()), sync=True)


def history(repository: Path, pipeline: str) -> list[Event]:
    """Oldest first. Lines that are no event are left out."""
    found = []
    for document in json_lines.read(_path(repository, pipeline)):
        with contextlib.suppress(TypeError):  # other keys
            found.append(Event(**document))
    return found


def has_served(events: list[Event], number: int) -> bool:
    """Whether it was live, or was tried on a share of the requests."""
    return any(event.after == number and event.action != FAILED for event in events)


def came(events: list[Event], number: int) -> Event | None:
    """What made `number` live last; None when the history does not know."""
    return next((event for event in reversed(events) if event.after == number and event.action not in UNCHANGED), None)


def before(events: list[Event], number: int) -> int | None:
    """The version that was live before `number` came last; None when the history does not know."""
    for event in reversed(events):
        if event.after == number and event.action not in UNCHANGED and event.before not in (None, number):
            return event.before
    return None


def _path(repository: Path, pipeline: str) -> Path:
    return repository / FOLDER / f"{pipeline}.history.jsonl"
