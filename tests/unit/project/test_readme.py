"""The README promises only what is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from builder.cli.main import app

ROOT = Path(__file__).parents[3]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "pipelines/README.md", "docs/flags.md", "docs/canary.md"]


def shell_lines(text: str) -> list[str]:
    """Lines of the shell blocks and the inline code, comments cut off."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line for block in blocks for line in block.splitlines() if line.strip()] + inline


def calls(program: str) -> list[list[str]]:
    """Arguments of every call of the program in the documents."""
    found = []
    for document in DOCUMENTS:
        for line in shell_lines((ROOT / document).read_text(encoding="utf-8")):
            if re.match(rf"(\.venv/bin/)?{program} ", line):
                found.append(shlex.split(line.split(" > ")[0], comments=True)[1:])
    return found


@pytest.mark.parametrize("arguments", calls("builder"), ids=" ".join)
def test_every_command_in_the_documents_exists_with_its_options(arguments: list[str]) -> None:
    command: Any = typer.main.get_group(app)
    words = iter(arguments)
    while hasattr(command, "commands"):  # the command line itself, and groups such as `flags`
        word = next(words)
        assert word in command.commands
        command = command.commands[word]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in arguments[1:] if word.startswith("--")} <= options


def test_the_readme_shows_the_commands_of_a_first_session() -> None:
    shown = {arguments[0] for arguments in calls("builder")}
    assert {"init", "doctor", "plan", "build", "serve", "generate", "demo", "schema"} <= shown


@pytest.mark.parametrize("arguments", calls("make"), ids=" ".join)
def test_every_make_target_in_the_documents_exists(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(arguments[0])}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/architecture.md", "docs/decisions.md", "CHANGELOG.md"])
def test_every_relative_link_leads_to_a_file(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_first_pipeline_in_the_readme_is_valid(tmp_path: Path) -> None:
    from builder.spec import load_pipeline

    text = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert text
    file = tmp_path / "first.yaml"
    file.write_text(text[1], encoding="utf-8")
    assert load_pipeline(file).spec.metadata.name == "smollm2"


def test_the_readme_says_that_speed_replaces_neither_retrieval_nor_prompts() -> None:
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "does not replace good retrieval or good prompts" in words
