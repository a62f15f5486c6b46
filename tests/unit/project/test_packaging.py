"""What is installed is declared, pinned and licensed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import builder

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(file: str) -> list[Requirement]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


APART = {"trtllm": "requirements-trtllm.txt"}  # extras with an environment, and so pins, of their own


def declared() -> list[tuple[Requirement, str]]:
    """Each declared package and the file that pins it."""
    project = PROJECT["project"]
    ours = [(line, "constraints.txt") for line in (*PROJECT["build-system"]["requires"], *project["dependencies"])]
    extras = project["optional-dependencies"].items()
    theirs = [(line, APART.get(extra, "constraints.txt")) for extra, lines in extras for line in lines]
    return [(Requirement(line), file) for line, file in (*ours, *theirs)]


@pytest.mark.parametrize(("requirement", "file"), declared(), ids=str)
def test_every_declared_package_is_pinned_to_a_version_it_allows(requirement: Requirement, file: str) -> None:
    pins = {canonicalize_name(pin.name): pin for pin in requirements(file)}
    pin = pins.get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is missing in {file}"
    (version,) = pin.specifier
    assert requirement.specifier.contains(version.version)


@pytest.mark.parametrize("file", ["constraints.txt", "requirements-models.txt", "requirements-trtllm.txt", "requirements-focus.txt"])
def test_every_pin_is_exact_and_free_of_local_version_labels(file: str) -> None:
    for pin in requirements(file):
        assert re.fullmatch(r"==[^+*]+", str(pin.specifier)), f"{pin} in {file}"


def test_the_constraints_name_each_package_once() -> None:
    names = [canonicalize_name(pin.name) for pin in requirements("constraints.txt")]
    assert sorted(names) == sorted(set(names))


def test_transformers_is_no_runtime_dependency() -> None:
    assert "transformers" not in {Requirement(line).name for line in PROJECT["project"]["dependencies"]}


def test_the_licence_is_the_whole_apache_text() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_data_files_of_the_package_are_declared() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    package = Path(builder.__file__).parent
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    assert [str(path.relative_to(package)) for path in files if not any(path.match(pattern) for pattern in patterns)] == []


def test_every_chosen_and_every_ignored_rule_has_a_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text[text.index("[tool.ruff.lint]") : text.index("[tool.mypy]")]
    rules = re.findall(r'^\s+"[A-Z]+\d*",.*$', section, flags=re.MULTILINE)
    assert len(rules) >= 12
    assert [rule for rule in rules if "# " not in rule] == []
