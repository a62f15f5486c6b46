"""Runs untrusted code: read from stdin as JSON, limited before it starts. Executed by file name with `python -I -S`.

A model's code is careless rather than hostile, so several plain fences: no network (an own network namespace where the
kernel grants one), no files but the standard library's, no processes, little memory and time. Success is a secret word
on stdout that the code under test never sees.
"""

import contextlib
import ctypes
import io
import json
import os
import resource
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
FORBIDDEN = (  # beginnings of audit events
    *("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "pty.", "signal."),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate", "shutil."),
    *("ctypes.", "mmap.", "resource.", "fcntl.", "urllib.", "http."),
)


def main() -> None:
    job = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET)
    seconds, memory = int(job["seconds"]), int(job["memory"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if _passes(job["code"], job["tests"]):
        report.write(job["word"])
        report.flush()
    os._exit(0)  # no exit handlers of the code under test


def _passes(code: str, tests: str) -> bool:
    libraries = tuple(os.path.realpath(path) + os.sep for path in sys.path if path)
    compiled = compile(code, "answer", "exec"), compile(tests, "tests", "exec")

    def fence(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, mode = arguments[0], arguments[1]
            if not isinstance(path, str) or mode not in (None, "r", "rb") or not os.path.realpath(path).startswith(libraries):
                raise PermissionError("files are closed here")
        elif event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is closed here")

    sys.addaudithook(fence)
    sys.stdin = io.StringIO()
    sys.stdout = sys.stderr = io.StringIO()
    names: dict[str, object] = {"__name__": "answer"}
    try:
        exec(compiled[0], names)  # noqa: S102 - what this process is for
        exec(compiled[1], names)  # noqa: S102
    except BaseException:  # SystemExit of the code is no success either
        return False
    return True


if __name__ == "__main__":
    try:
        main()
    except Exception:  # code that is no Python, or limits that left no room
        os._exit(1)
