"""Versions on a real server: one takes over from another under load, bad ones are refused or taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from builder.build import build_pipeline
from builder.drills.load import Load
from builder.drills.rollback import drill_rollback
from builder.repository.live import serving_version
from builder.repository.rollback import roll_back
from builder.serve.ports import free_ports
from builder.serve.servers import running_servers
from builder.serve.triton import Triton
from tests.integration.conftest import tiny_spec
from tests.integration.talk import eventually, generate


def test_a_new_version_goes_live_and_is_taken_back_without_a_failed_request(tmp_path: Path, tiny_weights: Path) -> None:
    def build(draft_tokens: int) -> int:
        path = tmp_path / "tiny.yaml"
        spec = tiny_spec("tiny", tiny_weights, speculation={"max_draft_tokens": draft_tokens})
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
        return build_pipeline(path, tmp_path / "repository", verify=False).version

    assert build(2) == 1
    with Triton(tmp_path / "repository", "tiny", free_ports()) as server:
        url = f"{server.host}:{server.ports['grpc']}"
        with Load(url, "tiny", 3, {"max_tokens": 24, "ignore_eos": True}) as load:
            assert build(3) == 2  # finds the server by its note
            assert version_of(server) == 2
            servers = running_servers(tmp_path / "repository", "tiny")
            assert servers[0].ready_versions("tiny_decode") == [1, 2]  # the version before stays, for the way back
            done = roll_back(tmp_path / "repository", "tiny", None, servers, "test")
            assert (done.before, done.after, len(done.servers)) == (2, 1, 1)
            assert version_of(server) == 1
        assert load.failed == []
        assert {int(asked.stats["version"]) for asked in load.asked} == {1, 2}
        eventually(lambda: loads_and_unloads(tmp_path / "repository") == [("load", "1"), ("load", "2"), ("unload", "2")])
        assert running_servers(tmp_path / "repository", "tiny")
    assert running_servers(tmp_path / "repository", "tiny") == []
    with Triton(tmp_path / "repository", "tiny", free_ports()) as restarted:
        assert version_of(restarted) == 1


@pytest.mark.slow
def test_the_rollback_drill_passes_on_a_good_version(built_repository: Path) -> None:
    result = drill_rollback(serving_version(built_repository, "tiny"), quick=True)
    assert [check for check in result.checks if not check.passed] == []
    assert result.failed_requests == 0 and result.requests >= 40
    assert {"seconds_to_detect: loads but is slow", "seconds_to_detect: loads but answers wrong"} == set(result.measured)


def test_a_server_that_starts_serves_before_it_has_loaded_the_version_to_go_back_to(tmp_path: Path, tiny_weights: Path) -> None:
    path, repository = tmp_path / "tiny.yaml", tmp_path / "repository"
    for draft_tokens in (2, 3):
        spec = tiny_spec("tiny", tiny_weights, speculation={"max_draft_tokens": draft_tokens})
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
        build_pipeline(path, repository, verify=False)
    with Triton(repository, "tiny", free_ports()) as server:
        assert version_of(server) == 2
        eventually(lambda: loads_and_unloads(repository) == [("load", "2"), ("load", "1")])
        assert roll_back(repository, "tiny", None, running_servers(repository, "tiny")).after == 1
        assert version_of(server) == 1
        eventually(lambda: loads_and_unloads(repository)[2:] == [("unload", "2")])


def loads_and_unloads(repository: Path) -> list[tuple[str, str]]:
    """Of the decode model's versions, in order."""
    lines = (repository / ".flags" / "tiny.events.jsonl").read_text().splitlines()
    return [(event["event"], event["version"]) for event in map(json.loads, lines) if event["event"] in ("load", "unload")]


def version_of(server: Triton) -> int:
    return int(yaml.safe_load(generate(server, text_input="hello", max_tokens=2)["decode_stats"])["version"])
