"""What came back for one request, as its client saw it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from loadtest.ask import Ask

# refused: the server said no, in words. failed: no proper answer came. left: the client went away before the end.
Outcome = Literal["done", "cancelled", "left", "refused", "failed"]
MOST_ERROR_TEXT = 160  # characters


@dataclass
class Reply:
    """Times on the monotonic clock. `digest` is the SHA-256 of the answer's text; the text itself stays with its client."""

    chunk_times: list[float] = field(default_factory=list)
    outcome: Outcome = "failed"
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    stats: Mapping[str, Any] | None = None
    text: str = field(default="", repr=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()

    def take(self, fields: Mapping[str, str]) -> None:
        """A response of the ensemble: one chunk, or the whole answer."""
        self.chunk_times.append(time.monotonic())
        self.text += fields.get("text_output", "")
        if reason := fields.get("finish_reason"):
            self.outcome = "cancelled" if reason == "cancelled" else "done"
            self.usage = json.loads(fields["usage"]) if fields.get("usage") else None
            self.stats = json.loads(fields["decode_stats"]) if fields.get("decode_stats") else None

    def refuse(self, message: str) -> None:
        self.outcome, self.error = "refused", message[:MOST_ERROR_TEXT]

    def fail(self, message: str) -> None:
        self.outcome, self.error = "failed", message[:MOST_ERROR_TEXT]


class Client(Protocol):
    """Keeps its connection between requests; for one request at a time."""

    def ask(self, ask: Ask) -> Reply:
        """Never raises for what a server or network does: that is the reply's outcome."""

    def close(self) -> None: ...
