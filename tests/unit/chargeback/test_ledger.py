"""The ledger: every record once, whatever happens to the process or to the disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.chargeback import ledger as ledger_module
from builder.chargeback.ledger import Ledger
from builder.chargeback.record import Record, is_whole, record_of
from builder.chargeback.segment import repair, whole_length
from builder.chargeback.usage import segment_files, sum_folder
from builder.runtime.request import DecodeStats, FinishReason, Output, Usage

ROOT = Path(__file__).parents[3]


def ids(folder: Path) -> list[str]:
    """Of all whole lines, segment by segment."""
    lines = [line for path in segment_files(folder) for line in path.read_bytes().split(b"\n")]
    return [json.loads(line)["id"] for line in lines if is_whole(line)]


def test_a_record_is_there_as_soon_as_it_was_added(tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path / "p")
    ledger.add(record("a", output=3))
    ledger.add(record("b"))
    (path,) = (tmp_path / "p").iterdir()
    assert path.name == f"2026-03-05-{ledger.writer}-000001.part"
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["id"], first["number"], first["output"], second["number"]) == ("a", 1, 3, 2)
    assert set(first) == {"number", *Record.__dataclass_fields__}


def test_closing_seals_the_segment(tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(record())
    ledger.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]


def test_a_ledger_without_records_leaves_no_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.upkeep()
    ledger.close()
    assert list(tmp_path.iterdir()) == []


def test_segments_rotate_by_size_and_by_day(tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path, segment_bytes=len(record("0").line(1)) + 1)
    for day, name in ((5, "0"), (5, "1"), (5, "2"), (6, "3")):
        ledger.add(record(name, time=f"2026-03-0{day}T10:00:00.000+00:00"))
    names = [(path.name[:10], path.stem[-6:], path.suffix) for path in segment_files(tmp_path)]
    assert names == [("2026-03-05", "000001", ".jsonl"), ("2026-03-05", "000002", ".jsonl"), ("2026-03-06", "000003", ".part")]
    assert ids(tmp_path) == ["0", "1", "2", "3"]


def test_an_idle_ledger_seals_the_segment_of_a_day_that_is_over(tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path, today=lambda: "2026-03-06")
    ledger.add(record())
    ledger.upkeep()
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]


def test_writers_that_live_keep_their_segments(tmp_path: Path, record: Any) -> None:
    first = Ledger(tmp_path)
    first.add(record("a"))
    second = Ledger(tmp_path)
    second.add(record("b"))
    first.add(record("c"))
    assert sorted(ids(tmp_path)) == ["a", "b", "c"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".part", ".part"]


def abandoned(folder: Path, content: bytes) -> Path:
    path = folder / "2026-03-05-aaaaaaaaaaaa-000001.part"
    path.write_bytes(content)
    return path


@given(data=st.data())
def test_repair_keeps_the_whole_records_and_nothing_else(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("torn")
    lines = [Record(str(i), "t", "s", "p", "1", "plain", "stop", *[0] * 7, 0.1).line(i + 1) for i in range(3)]
    content = b"\n".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    tail = data.draw(st.sampled_from([b"", b"\0" * 50, b"\n\0\0"]))  # zeros: a file system that knew the length but not yet the data
    path = abandoned(folder, content[:cut] + tail)
    repair(folder)
    ends = [len(b"\n".join(lines[:count])) for count in range(4)]
    whole = b"\n".join(lines[: sum(end <= cut for end in ends) - 1])
    if cut in ends[1:] and tail.startswith(b"\0"):
        whole = b"\n".join(lines[: ends.index(cut) - 1])  # the zeros have become part of that line
    assert path.with_suffix(".jsonl").read_bytes() == whole
    assert not path.exists()


def test_a_new_ledger_repairs_what_a_killed_writer_left(tmp_path: Path, record: Any) -> None:
    abandoned(tmp_path, record("a").line(1) + b'\n{"number":2,"id":"b","ti')
    (tmp_path / "2026-03-05-bbbbbbbbbbbb-000001.new").write_bytes(b"")
    Ledger(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["2026-03-05-aaaaaaaaaaaa-000001.jsonl"]
    assert ids(tmp_path) == ["a"]


def test_fifty_killed_writers_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("killed_writers.py")), str(tmp_path), "50"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    acknowledged = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=200).stdout.split()
    Ledger(tmp_path)  # the next server
    found = Counter(ids(tmp_path))
    assert len({name.partition("-")[0] for name in acknowledged}) == 50
    assert set(acknowledged) <= set(found)
    assert set(found.values()) == {1}
    unacknowledged = set(found) - set(acknowledged)
    assert len({name.partition("-")[0] for name in unacknowledged}) == len(unacknowledged)  # at most the one in hand of each writer
    assert all(group.damaged == 0 and group.lines == group.last for group in sum_folder(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir() if path.suffix != ".jsonl"] == []


class FullDisk:
    """os.write that takes only half of a line while it is full."""

    def __init__(self) -> None:
        self.full = True
        self._write = os.write

    def __call__(self, descriptor: int, line: bytes) -> int:
        if not self.full:
            return self._write(descriptor, line)
        self._write(descriptor, line[: len(line) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    disk = FullDisk()
    monkeypatch.setattr("builder.chargeback.segment.os.write", disk)
    return disk


def test_records_wait_for_a_full_disk_and_are_written_once_each(tmp_path: Path, record: Any, disk: FullDisk) -> None:
    ledger = Ledger(tmp_path)
    for name in "abc":
        ledger.add(record(name))
    assert ids(tmp_path) == []
    assert (ledger.state.pending, ledger.state.written) == (3, 0)
    assert "No space left" in str(ledger.state.error)
    disk.full = False
    ledger.upkeep()
    ledger.add(record("d"))
    assert ids(tmp_path) == list("abcd")
    assert (ledger.state.pending, ledger.state.written, ledger.state.lost, ledger.state.error) == (0, 4, 0, None)


def test_a_disk_that_stays_full_costs_bounded_memory_and_says_what_was_lost(
    tmp_path: Path, record: Any, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_PENDING", 2)
    ledger = Ledger(tmp_path)
    for name in "abc":
        ledger.add(record(name))
    disk.full = False
    ledger.upkeep()
    assert ids(tmp_path) == ["b", "c"]
    assert ledger.state.lost == 1


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path: Path, record: Any) -> None:
    (tmp_path / "file").write_text("")
    ledger = Ledger(tmp_path / "file" / "p")
    ledger.add(record())
    ledger.upkeep()
    ledger.close()
    assert ledger.state.pending == 1
    assert ledger.state.failures > 0


def test_the_record_of_a_request_has_its_counts_and_not_its_tokens() -> None:
    stats = DecodeStats("speculative", 2, 8, 6, target_passes=3, target_passes_avoided=5, compute_seconds=0.25)
    output = Output("r", (111, 222), finish_reason=FinishReason.STOP, usage=Usage(10, 6, 4), stats=stats)
    made = record_of(output, tenant="search", model="p", version="2")
    assert made is not None
    assert (made.input, made.cached_input, made.output, made.drafted, made.rejected) == (6, 4, 6, 8, 2)
    assert (made.target_passes, made.passes_avoided, made.compute_seconds, made.finish_reason) == (3, 5, 0.25, "stop")
    assert b"111" not in made.line(1) and b"222" not in made.line(1)


def test_a_request_that_was_never_counted_has_no_record() -> None:
    assert record_of(Output("r", (), finish_reason=FinishReason.ERROR), tenant="t", model="p", version="1") is None


def test_nothing_whole_means_an_empty_segment() -> None:
    assert whole_length(b"\0\0\0") == whole_length(b"") == whole_length(b'{"number":1') == 0
