"""Long work as the person at it sees it: a bar a stage on a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from builder.cli.console import err
from builder.progress import Progress

LINE_EVERY = 30.0  # seconds between two lines of one stage in a log


class Bars:
    """One bar a stage."""

    def __init__(self, bars: progress.Progress) -> None:
        self._bars = bars
        self._current: TaskID | None = None

    def stage(self, title: str, steps: int) -> None:
        self.finish()
        self._current = self._bars.add_task(title, total=steps)

    def advance(self, step: str) -> None:  # noqa: ARG002 (the bar counts; the name is for logs)
        if self._current is not None:
            self._bars.advance(self._current)

    def finish(self) -> None:
        """A stage that found its result in the cache took no steps: its bar is full all the same."""
        if self._current is not None:
            total = self._bars.tasks[self._current].total
            self._bars.update(self._current, completed=total)


class Lines:
    """A line for each stage, and one every LINE_EVERY seconds while it lasts."""

    def __init__(self) -> None:
        self._title, self._steps, self._done, self._told = "", 0, 0, 0.0

    def stage(self, title: str, steps: int) -> None:
        self._title, self._steps, self._done, self._told = title, steps, 0, time.monotonic()
        err.print(title, markup=False, soft_wrap=True)

    def advance(self, step: str) -> None:  # noqa: ARG002 - Progress's
        self._done += 1
        now = time.monotonic()
        if now - self._told >= LINE_EVERY:
            self._told = now
            err.print(f"{self._title}: {self._done} of {self._steps}", markup=False, soft_wrap=True)


@contextmanager
def show_stages() -> Iterator[Progress]:
    """On stderr."""
    if not err.is_terminal:
        yield Lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress.Progress(*columns, console=err) as running:
        bars = Bars(running)
        yield bars
        bars.finish()
