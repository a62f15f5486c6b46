"""Run a program that is told to stop when the process that started it dies, even by SIGKILL.

    python -I lifeline.py PARENT_PID PROGRAM ARGUMENTS...

The kernel keeps the death signal over execve, so PROGRAM needs to know nothing of it. The signal follows the thread that
started this process: start it from one that lives as long as the program should.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the signal was asked for
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
