"""What `builder calibrate` came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CalibrationResult:
    """`found` is calibration.json; `cached`: nothing had to be trained or tested."""

    pipeline: str
    record: Path
    found: dict[str, Any]
    cached: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "record": self.record.name,
            "cached": self.cached,
            "seconds": round(self.seconds, 1),
            **self.found,
        }
