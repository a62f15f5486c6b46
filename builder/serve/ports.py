"""Ports: is one free, and if not, who holds it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from pathlib import Path

from builder.errors import ServeError

LISTEN = "0A"  # state column of /proc/net/tcp


def require_free(host: str, ports: Mapping[str, int]) -> None:
    """ServeError naming the first port that is taken and, where /proc tells, the process that listens on it."""
    for name, port in ports.items():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free for a server
            try:
                probe.bind((host, port))
            except OSError as error:
                _refuse(host, name, port, error)


def free_ports(host: str = "127.0.0.1") -> dict[str, int]:
    """Ports for http, grpc and metrics that are free now. All are held until the last is found, so that they differ."""
    probes = [socket.create_server((host, 0)) for _ in range(3)]
    try:
        return dict(zip(("http", "grpc", "metrics"), (probe.getsockname()[1] for probe in probes), strict=True))
    finally:
        for probe in probes:
            probe.close()


def _refuse(host: str, name: str, port: int, error: OSError) -> None:
    key = f"serving.{name}_port"
    if error.errno == errno.EADDRINUSE:
        holder = listener(port)
        by = f" by {holder}" if holder else ""
        raise ServeError(f"port {port} ({name}) is in use{by}", where=key, mend=f"Stop that process or set {key} to a free port") from error
    raise ServeError(f"cannot listen on {host}:{port} ({error.strerror})", where=key, mend="Choose another host or port") from error


def listener(port: int) -> str | None:
    """`name (pid N)` of the process that listens on a TCP port; None when it belongs to another user or is gone."""
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening_inodes(Path("/proc/net") / table, port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(handle.readlink()) in inodes for handle in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue  # ended meanwhile, or another user's
    return None


def _listening_inodes(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port]
