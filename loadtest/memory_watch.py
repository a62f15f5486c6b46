"""Resident memory of a process over time, and whether it grows."""

from __future__ import annotations

import statistics
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from builder.serve.stub import memory

PERIOD = 0.5  # seconds


class MemoryWatch:
    """Context manager: `readings` in bytes, taken every PERIOD by a thread. `process` is a folder of /proc."""

    def __init__(self, process: Path) -> None:
        self.readings: list[int] = []
        self._process = process
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(PERIOD):
            resident = memory(self._process, "VmRSS")
            if resident is not None:
                self.readings.append(resident)


def growth(readings: list[int]) -> float | None:
    """Median of the last quarter over that of the first, less 1; None for fewer than four readings."""
    quarter = len(readings) // 4
    if not quarter:
        return None
    return statistics.median(readings[-quarter:]) / statistics.median(readings[:quarter]) - 1
