"""How detokenize tells decode, another process of the same tritonserver, that nobody listens to an answer any longer.

A datagram on an abstract Unix socket, read by decode's upkeep. Not a call inside the server: BLS to a decoupled model spoils the
caller's memory in tritonserver 2.51, and a detokenize that ended by it took the pipeline with it (docs/decisions.md).
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

LONGEST = 32  # bytes of a datagram: a number
CREDENTIALS = struct.Struct("3i")  # process, user and group of the sender, by the kernel's word


def address_of(model: str, version: str) -> str:
    """One for each version of a pipeline in a server: the server is the parent of both processes, its start tells it from one of another
    container with the same number."""
    server = os.getppid()
    started = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]  # field 22 of proc(5)
    return f"\0tandem-{server}-{started}-{model}-{version}"


def tell(address: str, key: int) -> None:
    """OSError when nobody can be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(str(key).encode(), address)


class Listener:
    """`keys` is called now and then. While an older instance of the model still holds the address, which a restart lets overlap, it tries
    again each time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def keys(self) -> list[int]:
        """What was told since the call before, by this user's processes."""
        self._socket = self._socket or _bound(self._address)
        found: list[int] = []
        while self._socket is not None:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(LONGEST, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                break
            users = [CREDENTIALS.unpack(value)[1] for _, kind, value in ancillary if kind == socket.SCM_CREDENTIALS]
            if users == [os.getuid()] and data.isdigit():
                found.append(int(data))
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _bound(address: str) -> socket.socket | None:
    """None while another socket has the address."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        made.bind(address)
    except OSError:
        made.close()
        return None
    return made
