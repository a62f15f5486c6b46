"""SIGTERM for commands that run until they are told to end."""

from __future__ import annotations

import signal
from types import FrameType


def end_as_by_ctrl_c() -> None:
    """From now on SIGTERM raises KeyboardInterrupt: what was started is told to stop and waited for."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
    raise KeyboardInterrupt
