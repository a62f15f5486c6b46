"""The answer of one rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """`id` is stable: scripts and docs may name it. `mend` is set when `ok` is False, and says how to make it true."""

    id: str
    ok: bool
    message: str
    mend: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
