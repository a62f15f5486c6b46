from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from builder.errors import ServeError
from builder.serve.ports import listener, require_free


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_taken_port_is_refused_with_the_process_that_holds_it(taken: int) -> None:
    with pytest.raises(ServeError, match=rf"serving\.grpc_port: port {taken} \(grpc\) is in use by .*\(pid {os.getpid()}\)"):
        require_free("127.0.0.1", {"grpc": taken})


def test_a_free_port_passes(taken: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    assert port != taken
    require_free("127.0.0.1", {"http": port})
    assert listener(port) is None


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ServeError, match=r"cannot listen on 192\.0\.2\.1:"):
        require_free("192.0.2.1", {"http": 0})
