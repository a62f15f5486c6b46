"""`builder flags`: what operators type, right or wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.cli import flags
from builder.repository import versions
from builder.repository.flag_store import FlagStore


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, call_builder: Any, tmp_path: Path) -> Any:
    """run("set", "all=off") -> exit code, stdout, stderr, of `builder flags set p.yaml all=off` with a published pipeline p."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flags, "newest", lambda repository, pipeline: None)
    (tmp_path / "model_repository").mkdir()
    spec = {"apiVersion": "tandem/v1", "kind": "Pipeline", "metadata": {"name": "p", "owner": "tests"}}
    spec |= {"target": {"weights": "w"}, "chargeback": {"tenants": ["search"]}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(spec))

    def call(verb: str, *arguments: str) -> tuple[int, str, str]:
        code, out, err = call_builder("flags", verb, "p.yaml", *arguments)
        return code, out, err

    return call


def test_several_flags_are_set_at_once_and_shown_with_the_reason_they_are_in_force(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("set", "speculation=off", "all=on", "--reason", "test")
    assert code == 0
    assert "set for the pipeline" in out
    assert FlagStore(tmp_path / "model_repository", "p").read().pipeline == {"speculation": False, "all": True}


def test_set_prints_what_changed_as_json(run: Any) -> None:
    code, out, _ = run("set", "all=off", "--reason", "test", "--tenant", "search", "--json")
    answer = json.loads(out)
    assert code == 0
    assert [(change["flag"], change["old"], change["new"], change["why"]) for change in answer["changed"]] == [
        ("all", "default", "off", "test")
    ]
    rows = {(row["flag"], row["on"]) for row in answer["flags"]}
    assert rows == {("speculation", False), ("early_exit", False), ("prefix_cache", False), ("all", False)}


def test_get_shows_the_pipeline_and_the_tenants_with_their_own(run: Any) -> None:
    run("set", "speculation=off", "--tenant", "search")
    rows = json.loads(run("get", "--json")[1])["flags"]
    assert [(row["tenant"], row["flag"], row["on"]) for row in rows if row["flag"] == "speculation"] == [
        (None, "speculation", True),
        ("search", "speculation", False),
    ]


def test_history_shows_every_change(run: Any) -> None:
    run("set", "all=off", "--reason", "3 a.m.")
    run("set", "all=default", "--reason", "[mended]")
    _, out, _ = run("history")
    assert "3 a.m." in out
    assert "[mended]" in out
    assert [change["new"] for change in json.loads(run("history", "--json")[1])["history"]] == ["off", "default"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["speculaton=off"], "Did you mean `speculation`"),
        (["colour=off"], "Known are speculation, early_exit, prefix_cache, all"),
        (["speculation=of"], "Did you mean `off`"),
        (["speculation"], "FLAG=off"),
        (["all=on", "all=off"], "set twice"),
        (["all=off", "--tenant", "serch"], "Did you mean `search`"),
    ],
)
def test_what_is_unknown_is_refused_with_the_nearest_right_one(run: Any, tmp_path: Path, arguments: list[str], text: str) -> None:
    code, out, err = run("set", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert not (tmp_path / "model_repository" / ".flags").exists()


def test_a_repository_without_the_pipeline_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flags, "newest", versions.newest)
    code, _, err = run("set", "all=off", "--repository", "elsewhere")
    assert code == 2
    assert "no version of p is published" in err
    assert not (tmp_path / "elsewhere").exists()


def test_setting_what_is_set_already_says_so(run: Any) -> None:
    run("set", "all=off", "--reason", "test")
    code, _, err = run("set", "all=off", "--reason", "test")
    assert code == 0
    assert "set so already" in err
