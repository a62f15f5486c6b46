"""What long work tells whoever shows it: stages in turn, each of a known number of steps."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def stage(self, title: str, steps: int) -> None: ...

    def advance(self, step: str) -> None: ...


class NoProgress:
    """Shows nothing."""

    def stage(self, title: str, steps: int) -> None:
        pass

    def advance(self, step: str) -> None:
        pass
