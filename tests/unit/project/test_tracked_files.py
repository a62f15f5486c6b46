"""The repository names no package registry and no path of the machine it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Put together from pieces, so that this file does not name them either.
REGISTRIES = re.compile("|".join(["py" + r"pi\.org", "python" + r"hosted\.org", "download" + r"\.pytorch", r"index-url[ =]\S*" + "://"]))
MACHINE_PATHS = re.compile(r"(?<![\w.~/-])/(?:" + "|".join(["ro" + "ot", "wo" + "rk", "ho" + "me"]) + r")/")


def project_files() -> list[Path]:
    """Files that are in the repository or would be added to it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in (ROOT / name for name in names.split("\0") if name) if path.is_file()]


@pytest.mark.parametrize("pattern", [REGISTRIES, MACHINE_PATHS], ids=["registries", "machine paths"])
def test_no_file_matches(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert REGISTRIES.search("pip install --index-url https" + "://example.com/simple torch")
    assert MACHINE_PATHS.search("see " + "/ro" + "ot/.cache")
    assert not MACHINE_PATHS.search("text/home/page and ~/" + "work/here")


def test_built_things_are_not_tracked() -> None:
    assert [path for path in project_files() if path.suffix in {".so", ".pyc", ".gguf"} or path.stat().st_size > 2_000_000] == []
