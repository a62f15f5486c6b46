"""`make` sets everything up by itself, says what is missing, and never hides a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def executable(path: Path, script: str) -> Path:
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path


def path_without_python(folder: Path, dpkg_status: str) -> str:
    """A search path with the tools of .ci/setup, a dpkg-query that reports one status for all, and no Python."""
    folder.mkdir()
    for tool in ("bash", "dirname", "grep"):
        found = shutil.which(tool)
        assert found
        (folder / tool).symlink_to(found)
    executable(folder / "dpkg-query", f"#!{shutil.which('bash')}\necho '{dpkg_status}'\n")
    return str(folder)


def setup(path: str, venv: Path) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".ci/setup"), str(venv)]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert phony
    variables = dict(re.findall(r"^(\w+) := (.*)$", MAKEFILE, flags=re.MULTILINE))
    targets = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], phony[1]).split()
    shown = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in shown.splitlines()] == [*dict.fromkeys(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))]
    assert sorted(targets) == sorted(line.split()[0] for line in shown.splitlines())


def test_every_target_that_runs_a_tool_sets_up_first() -> None:
    rules = re.findall(r"^([a-z0-9-]+):([^#\n]*)## .*\n((?:\t.*\n)*)", MAKEFILE, flags=re.MULTILINE)
    assert len(rules) > 10
    lacking = [name for name, needs, recipe in rules if re.search(r"\$\((BUILDER|PYTHON|VENV)\)", recipe) and "setup" not in needs]
    assert [name for name in lacking if name != "clean"] == []


def test_setup_runs_again_when_a_list_of_packages_changes() -> None:
    (needs,) = re.findall(r"^\$\(INSTALLED\): (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert {"pyproject.toml", "constraints.txt", "requirements-models.txt", ".ci/debian-packages.txt"} <= set(needs.split())


def test_setup_installs_what_the_list_of_debian_packages_names() -> None:
    assert ".ci/debian-packages.txt" in (ROOT / ".ci/setup").read_text(encoding="utf-8")
    names = [line for line in (ROOT / ".ci/debian-packages.txt").read_text(encoding="utf-8").splitlines() if line[:1] not in {"", "#"}]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name) for name in names)
    assert {"g++", "make", "python3-venv"} <= set(names)


def test_setup_installs_missing_debian_packages_as_root_and_names_them_to_others(tmp_path: Path) -> None:
    path = path_without_python(tmp_path / "bin", "unknown ok not-installed")
    executable(tmp_path / "bin/apt-get", f"#!{shutil.which('bash')}\necho \"$*\" >>'{tmp_path}/log'\n")
    result = setup(path, tmp_path / "venv")
    missing = "g++ haproxy libpython3-dev make prometheus prometheus-alertmanager python3-venv"
    if os.geteuid() == 0:
        told = (tmp_path / "log").read_text(encoding="utf-8")
        assert re.search(rf"^update.*\ninstall.* {re.escape(missing)}\n$", told)
    else:
        assert f"run as root: apt-get install {missing}" in result.stderr
        assert not (tmp_path / "log").exists()


def test_setup_without_a_fitting_python_says_which_one_to_install(tmp_path: Path) -> None:
    result = setup(path_without_python(tmp_path / "bin", "install ok installed"), tmp_path / "venv")
    assert result.returncode == 2
    assert "no Python 3.11 or 3.12" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_steps_go_on_after_a_failure_and_end_with_a_summary(tmp_path: Path) -> None:
    make = executable(tmp_path / "make", '#!/bin/sh\necho "ran $2"\n[ "$2" != second ]\n')
    command = [str(ROOT / ".ci/steps"), "first", "second", "third"]
    result = subprocess.run(command, env={"MAKE": str(make), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "ran third" in result.stdout
    assert re.search(r"second +FAILED", result.stdout)
    assert result.stdout.endswith("steps: 2 passed, 1 failed\n")


def test_ci_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert script.startswith("#!/usr/bin/env bash")
    assert "set -euo pipefail" in script
    assert "make test </dev/null" in script
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
