"""The out file: one entry per peer and mode, with numbers or with the reason why there are none."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from loadtest.peers.errors import PeersError
from loadtest.peers.trace import Summary

Mode = Literal["plain", "speculative", "ngram"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Measured:
    """Numbers of one peer in one mode. Rates are tokens per second of one stream, `ttft_ms` milliseconds."""

    peer: str
    mode: Mode
    precision: str
    version: str
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        head = {"peer": self.peer, "mode": self.mode, "precision": self.precision}
        return head | asdict(self.summary) | {"version": self.version}


@dataclass(frozen=True)
class Failed:
    """A peer that could not run in this mode."""

    peer: str
    mode: Mode
    error: str

    def to_json(self) -> dict[str, Any]:
        return {"peer": self.peer, "mode": self.mode, "error": self.error}


def write_entries(path: Path, entries: list[dict[str, Any]]) -> None:
    """Write the out file. Raises PeersError when it cannot be written."""
    try:
        path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise PeersError(
            f"the results cannot be written ({error.strerror})", where=str(path), mend="Name a file in a folder that can be written"
        ) from error
