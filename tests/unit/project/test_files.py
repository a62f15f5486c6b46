"""Files of a version: linked trees and what their failures say."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from builder import files
from builder.files import copy_file, link_tree


def test_a_linked_tree_holds_every_file_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "source" / "inner").mkdir(parents=True)
    (tmp_path / "source" / "a").write_text("1")
    (tmp_path / "source" / "inner" / "b").write_text("2")
    link_tree(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "inner" / "b").read_text() == "2"
    assert (tmp_path / "target" / "a").samefile(tmp_path / "source" / "a")


def test_a_full_disk_is_reported_by_its_number_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("1")

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr(files, "link_or_copy", full)
    with pytest.raises(OSError, match="No space left") as caught:
        link_tree(tmp_path / "source", tmp_path / "target")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("able", [True, False])
def test_a_copy_is_a_file_of_its_own_however_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    def unable(source: int, target: int, count: int) -> int:
        raise OSError(errno.EXDEV, "another file system")

    if not able:
        monkeypatch.setattr(os, "copy_file_range", unable)
    (tmp_path / "a").write_bytes(b"0123456789" * 1000)
    copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert not (tmp_path / "b").samefile(tmp_path / "a")
