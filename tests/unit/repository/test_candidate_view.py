"""A repository of one version beside the one that serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.repository import candidate_view, config_pbtxt, publish
from builder.repository.live import live_version
from builder.repository.publish import Release
from builder.repository.versions import Version


@pytest.fixture
def candidate(tmp_path: Path) -> Version:
    """Version 2; version 1 is live."""
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "weights").write_bytes(b"weights")
    for number in (1, 2):
        release = Release("p", {"metadata": {"name": "p"}}, {"weights": f"w{number}"}, {"tokenizer.json": "{}"}, {"target": engine})
        version, _ = publish.publish(tmp_path / "repository", release, promote=False)
    return version


def test_the_view_has_the_candidate_live_and_the_repository_keeps_its_own(candidate: Version) -> None:
    view = candidate_view.make_view(candidate)
    assert live_version(view, "p") == Version(view, "p", 2)
    assert live_version(candidate.repository, "p") == Version(candidate.repository, "p", 1)
    Version(view, "p", 2).manifest.check(Version(view, "p", 2).folders)
    assert list(config_pbtxt.read(view / "p_decode").version_policy.specific.versions) == [2]
    assert [path.name for path in sorted(view.glob("p*"))] == ["p", "p_decode", "p_detokenize", "p_tokenize"]


def test_flags_and_ledger_of_the_view_are_the_repository_s(candidate: Version) -> None:
    view = candidate_view.make_view(candidate)
    (candidate.repository / ".flags" / "p.json").write_text(json.dumps({}))
    (view / ".ledger" / "record").write_text("billed")
    assert (view / ".flags" / "p.json").read_text() == "{}"
    assert (candidate.repository / ".ledger" / "record").read_text() == "billed"


def test_what_a_killed_canary_left_is_made_anew_and_removing_the_view_removes_no_version(candidate: Version) -> None:
    (candidate_view.make_view(candidate) / "p" / "7").mkdir()
    view = candidate_view.make_view(candidate)
    assert not (view / "p" / "7").exists()
    candidate_view.remove_view(candidate.repository, "p")
    assert not view.exists()
    candidate.manifest.check(candidate.folders)
