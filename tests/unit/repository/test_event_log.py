"""The event log: whole lines only, rotated, nothing lost between two servers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from builder.repository import event_log
from builder.repository.event_log import EventLog


def test_events_come_back_in_order_with_version_and_server(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "p", "3")
    log.append("load")
    log.append("transition", reason="low_acceptance")
    first, second = log.read()
    assert (first["event"], first["version"], second["reason"]) == ("load", "3", "low_acceptance")
    assert ":" in first["server"]


def test_a_half_line_of_a_killed_server_spoils_no_other(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "p")
    log.append("load")
    with log.path.open("a") as file:
        file.write('{"when": "2026-')
    log.append("unload")
    assert [event["event"] for event in log.read()] == ["load", "unload"]


def test_a_grown_log_makes_room_and_keeps_the_youngest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LARGEST", 1000)
    log = EventLog(tmp_path, "p")
    for number in range(100):
        log.append("transition", number=number)
    assert len(list(log.path.parent.glob("*.jsonl*"))) == 1 + event_log.KEPT
    numbers = [event["number"] for event in log.read()]
    assert numbers == list(range(100 - len(numbers), 100))
    assert log.path.stat().st_size <= 1000


def test_two_servers_write_whole_lines_beside_each_other(tmp_path: Path) -> None:
    logs = [EventLog(tmp_path, "p", version) for version in "12"]
    threads = [threading.Thread(target=lambda log=log: [log.append("x") for _ in range(50)]) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(event["version"] for event in logs[0].read()) == ["1"] * 50 + ["2"] * 50
