"""Keys of answers that nobody listens to, told from one process of a server to another."""

from __future__ import annotations

import socket

import pytest

from builder.repository.models import deserted
from builder.repository.models.deserted import Listener, address_of, tell


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    return address_of(request.node.name, "1")


def test_each_key_is_heard_once(address: str) -> None:
    listener = Listener(address)
    assert listener.keys() == []
    tell(address, 7)
    tell(address, 2**31 - 1)
    assert listener.keys() == [7, 2**31 - 1]
    assert listener.keys() == []
    listener.close()


def test_a_new_instance_hears_once_the_old_one_has_let_go(address: str) -> None:
    old, new = Listener(address), Listener(address)
    assert old.keys() == new.keys() == []
    tell(address, 1)
    assert (new.keys(), old.keys()) == ([], [1])
    old.close()
    assert new.keys() == []
    tell(address, 2)
    assert new.keys() == [2]
    new.close()


def test_versions_and_pipelines_have_addresses_of_their_own() -> None:
    assert len({address_of("a", "1"), address_of("a", "2"), address_of("b", "1")}) == 3


def test_nobody_to_tell_is_an_error(address: str) -> None:
    with pytest.raises(OSError):
        tell(address, 1)


def test_another_users_word_and_no_number_are_not_heard(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(address)
    listener.keys()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x1", address)
    assert listener.keys() == []
    tell(address, 5)
    monkeypatch.setattr(deserted.os, "getuid", lambda: -2)
    assert listener.keys() == []
    listener.close()
