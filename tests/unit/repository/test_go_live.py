"""A version takes over, and is taken back: in the repository, and in servers that may refuse or be gone."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.errors import CheckError, RepositoryError, ServeError
from builder.repository import config_pbtxt, publish
from builder.repository.ensemble import ModelNames
from builder.repository.go_live import load_standby
from builder.repository.live import live_version, recover, serving_version, write_members
from builder.repository.lock import locked
from builder.repository.publish import Release
from builder.repository.rollback import roll_back
from builder.repository.version_history import ABORT, CANARY, Event, history, record
from builder.repository.versions import Version, versions

NAMES = ModelNames.of("p")


class FakeServer:
    """Loads what the configurations name, as Triton does, and refuses versions in `bad`."""

    def __init__(self, repository: Path, bad: tuple[int, ...] = (), gone: bool = False) -> None:
        self.repository, self.bad, self.gone = repository, bad, gone
        self.name = "127.0.0.1:1"
        self.loaded = {
            model: set(config_pbtxt.read(repository / model).version_policy.specific.versions) for model in (*NAMES.members, "p")
        }
        self.served: list[int] = []  # versions of the ensemble that were loaded, in order
        self.newly: set[tuple[str, int]] = set()  # what had to be loaded
        self.most = 0  # versions of decode in memory at once: Triton drops old ones only when the new ones are there

    def load(self, model: str) -> None:
        if self.gone:
            raise ServeError("cannot be reached")
        config = config_pbtxt.read(self.repository / model)
        wanted = set(config.version_policy.specific.versions)
        if wanted & set(self.bad) and model == NAMES.decode:
            raise CheckError(f"{model} cannot be loaded")
        for step in config.ensemble_scheduling.step:
            assert step.model_version in self.loaded[step.model_name], "the ensemble needs a version that is not loaded"
        self.newly |= {(model, version) for version in wanted - self.loaded[model]}
        if model == NAMES.decode:
            self.most = max(self.most, len(self.loaded[model] | wanted))
        self.loaded[model] = wanted
        if model == NAMES.ensemble:
            self.served += wanted
        else:
            assert wanted >= self.loaded["p"], "a member dropped a version that the ensemble still uses"


@pytest.fixture
def release(tmp_path: Path) -> Callable[[str], Release]:
    engine = tmp_path / "cache" / "target"
    engine.mkdir(parents=True)
    (engine / "weights.safetensors").write_bytes(b"weights")
    return lambda weights: Release("p", {"metadata": {"name": "p"}}, {"weights": weights}, {"tokenizer.json": "{}"}, {"target": engine})


@pytest.fixture
def repository(tmp_path: Path, release: Callable[[str], Release]) -> Path:
    """Versions 1 and 2; 2 is live."""
    for weights in ("w1", "w2"):
        publish.publish(tmp_path / "repository", release(weights))
    return tmp_path / "repository"


def live_number(repository: Path) -> int | None:
    found = live_version(repository, "p")
    return found.number if found else None


def require_valid(repository: Path) -> None:
    """What a server that starts now would load is complete and of one version; every version is as it was published."""
    live = live_version(repository, "p")
    assert live is not None
    for member in NAMES.members:
        assert live.number in config_pbtxt.read(repository / member).version_policy.specific.versions
    assert {step.model_version for step in config_pbtxt.read(repository / "p").ensemble_scheduling.step} == {live.number}
    for version in versions(repository, "p"):
        version.manifest.check(version.folders)


def test_the_last_published_is_live_and_rollback_makes_the_one_before_it_live(repository: Path) -> None:
    server = FakeServer(repository)
    assert live_number(repository) == 2
    done = roll_back(repository, "p", None, [server], "wrong answers")
    assert (done.before, done.after, live_number(repository)) == (2, 1, 1)
    assert server.served == [1]
    assert server.loaded == {model: {1} for model in (*NAMES.members, "p")}  # what was taken back is dropped
    last = history(repository, "p")[-1]
    assert (last.action, last.before, last.after, last.why) == ("rollback", 2, 1, "wrong answers")
    require_valid(repository)


def test_rolling_back_twice_returns_to_where_it_was(repository: Path) -> None:
    roll_back(repository, "p", None, [])
    assert roll_back(repository, "p", None, []).after == 2
    assert live_number(repository) == 2


def test_a_named_version_that_is_not_there_is_refused_with_those_that_are(repository: Path) -> None:
    with pytest.raises(RepositoryError, match="Versions there are: 1, 2"):
        roll_back(repository, "p", 7, [])


def test_the_only_version_cannot_be_taken_back(tmp_path: Path, release: Callable[[str], Release]) -> None:
    publish.publish(tmp_path / "one", release("w1"))
    with pytest.raises(RepositoryError, match="nothing to go back to"):
        roll_back(tmp_path / "one", "p", None, [])


def test_a_version_whose_files_were_changed_does_not_go_live(repository: Path) -> None:
    (Version(repository, "p", 1).folders["p_tokenize"] / "pipeline.json").write_text("{}")
    with pytest.raises(CheckError, match="version 1 must not go live: a file of this version was changed"):
        roll_back(repository, "p", None, [])
    assert live_number(repository) == 2


def test_a_version_that_a_server_cannot_load_leaves_the_old_one_live_everywhere(
    repository: Path, release: Callable[[str], Release]
) -> None:
    good, bad = FakeServer(repository), FakeServer(repository, bad=(3,))
    with pytest.raises(CheckError, match="cannot be loaded"):
        publish.publish(repository, release("w3"), servers=[good, bad])
    assert live_number(repository) == 2
    assert good.served[-1:] in ([], [2])
    assert good.loaded["p_decode"] == {1, 2}  # the live one and its standby, as before
    assert history(repository, "p")[-1].action == "failed"
    require_valid(repository)
    bad.bad = ()
    version, cached = publish.publish(repository, release("w3"), servers=[good])
    assert (version.number, cached) == (3, True)
    assert publish.resume(version, [good, bad]) == 3
    assert live_number(repository) == 3


def test_a_server_that_is_gone_holds_up_nobody(repository: Path) -> None:
    there, gone = FakeServer(repository), FakeServer(repository, gone=True)
    done = roll_back(repository, "p", 1, [gone, there])
    assert done.unreachable == (gone.name,)
    assert there.served == [1]


def test_a_version_that_was_rolled_back_stays_back_when_it_is_built_again(repository: Path, release: Callable[[str], Release]) -> None:
    roll_back(repository, "p", None, [])
    version, cached = publish.publish(repository, release("w2"))
    assert cached
    assert publish.resume(version) == 1
    assert live_number(repository) == 1


def test_the_oldest_go_but_never_the_live_or_the_previous_one(repository: Path, release: Callable[[str], Release]) -> None:
    roll_back(repository, "p", 1, [])
    for number in range(3, 7):
        publish.publish(repository, release(f"w{number}"), keep=2)
        require_valid(repository)
    assert [version.number for version in versions(repository, "p")] == [5, 6]
    roll_back(repository, "p", 5, [])
    publish.publish(repository, release("w7"), keep=2)
    assert [version.number for version in versions(repository, "p")] == [5, 6, 7]


def test_a_damaged_live_version_is_replaced_by_the_newest_that_is_whole(repository: Path) -> None:
    (repository / "p_detokenize" / "2").rename(repository / "gone")
    with locked(repository, "p"):
        assert recover(repository, "p").number == 1
    assert serving_version(repository, "p").number == 1
    require_valid(repository)


def test_a_half_written_history_line_is_left_out(repository: Path) -> None:
    path = repository / ".versions" / "p.history.jsonl"
    path.write_text(path.read_text() + '{"action": "rollb')
    roll_back(repository, "p", None, [])
    assert [event.after for event in history(repository, "p")] == [1, 2, 1]
    assert all(json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))


def test_versions_and_what_is_live_survive_fifty_kills(
    repository: Path, release: Callable[[str], Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process publishes and rolls back without end and dies, without any clean-up, before a random one of its file operations."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the kernel outlives the process: what is written is there
    chance = random.Random(7)
    for turn in range(50):
        child = os.fork()
        if child == 0:
            _work_until_killed(repository, release, turn, chance.randint(1, 450))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        chance.random()
        require_valid_after_recovery(repository)
    version, _ = publish.publish(repository, release("at last"), keep=3)
    assert live_number(repository) == version.number
    assert len(history(repository, "p")) > 50


def require_valid_after_recovery(repository: Path) -> None:
    live = live_number(repository)
    assert live is not None, "a server that starts now would find nothing"
    with locked(repository, "p"):
        assert recover(repository, "p").number == live
    require_valid(repository)


def _work_until_killed(repository: Path, release: Callable[[str], Release], turn: int, operations: int) -> None:
    left = operations

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.truncate"):
            left -= 1
            if left == 0:
                os._exit(9)

    sys.addaudithook(count)
    try:
        for number in range(10**6):
            publish.publish(repository, release(f"{turn}-{number}"), keep=3)
            roll_back(repository, "p", None, [])
    finally:
        os._exit(1)


def test_members_keep_both_versions_while_one_takes_over_from_the_other(repository: Path) -> None:
    write_members(repository, "p", 2, [1])
    assert list(config_pbtxt.read(repository / "p_decode").version_policy.specific.versions) == [1, 2]
    assert live_number(repository) == 2


def test_the_version_before_stays_loaded_so_that_taking_the_new_one_back_loads_nothing(
    repository: Path, release: Callable[[str], Release]
) -> None:
    server = FakeServer(repository)
    publish.publish(repository, release("w3"), servers=[server])
    assert {model: server.loaded[model] for model in NAMES.members} == {model: {2, 3} for model in NAMES.members}
    server.newly.clear()
    roll_back(repository, "p", None, [server])
    assert server.newly == {("p", 2)}
    assert server.loaded["p_decode"] == {2}


def test_a_version_that_comes_never_waits_beside_two_others(repository: Path, release: Callable[[str], Release]) -> None:
    server = FakeServer(repository)
    for weights in ("w3", "w4"):
        publish.publish(repository, release(weights), servers=[server])
    assert server.most == 2
    assert server.loaded["p_decode"] == {3, 4}


def test_without_a_standby_only_the_live_version_stays_loaded(repository: Path, release: Callable[[str], Release]) -> None:
    server = FakeServer(repository)
    spec = {"metadata": {"name": "p"}, "versions": {"standby": False}}
    publish.publish(repository, dataclasses.replace(release("w3"), spec=spec), servers=[server])
    assert server.loaded["p_decode"] == {3}


def test_a_server_that_starts_serves_the_live_version_and_then_loads_the_one_before(repository: Path) -> None:
    with locked(repository, "p"):
        recover(repository, "p")
        server = FakeServer(repository)
        assert server.loaded["p_decode"] == {2}
        load_standby(repository, "p", [server])
    assert server.loaded["p_decode"] == {1, 2}
    assert server.served == []


def test_a_standby_that_cannot_be_loaded_leaves_the_live_version_alone(repository: Path) -> None:
    with locked(repository, "p"):
        recover(repository, "p")
        server = FakeServer(repository, bad=(1,))
        load_standby(repository, "p", [server])
    assert server.loaded["p_decode"] == {2}
    assert list(config_pbtxt.read(repository / "p_decode").version_policy.specific.versions) == [2]


def test_a_published_version_waits_for_its_promotion_unless_nothing_is_live(
    tmp_path: Path, repository: Path, release: Callable[[str], Release]
) -> None:
    publish.publish(repository, release("w3"), promote=False)
    assert live_number(repository) == 2
    publish.publish(tmp_path / "first", release("w1"), promote=False)
    assert live_number(tmp_path / "first") == 1


def test_a_version_that_was_tried_and_taken_back_stays_back_and_is_not_what_a_rollback_goes_to(
    repository: Path, release: Callable[[str], Release]
) -> None:
    version, _ = publish.publish(repository, release("w3"), promote=False)
    for event in (Event(CANARY, 2, 3), Event(ABORT, 3, 2, "too slow", {"p95": 2.0})):
        record(repository, "p", event)
    assert publish.publish(repository, release("w3"))[1]
    assert publish.resume(version) == 2
    assert history(repository, "p")[-1].measured == {"p95": 2.0}
    with locked(repository, "p"):
        server = FakeServer(repository)
        load_standby(repository, "p", [server])
    assert server.loaded["p_decode"] == {1, 2}  # what is live came by a publish, whatever was tried since
    assert roll_back(repository, "p", None, []).after == 1
