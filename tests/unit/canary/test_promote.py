"""A canary's way from its start to its end, with a server and a front of the test's own: whatever happens, nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from builder.canary import promote
from builder.canary.arm import Arm
from builder.canary.comparison import BROKEN, KEPT, Comparison
from builder.canary.promote import CanaryRun, promote_at_once
from builder.canary.watch import PROMOTE, TAKE_BACK, Look
from builder.errors import CheckError, RepositoryError, ServeError
from builder.repository.candidate_view import FOLDER
from builder.repository.live import live_version
from builder.repository.lock import CANARY, locked
from builder.repository.publish import Release, publish
from builder.repository.rollback import roll_back
from builder.repository.version_history import history
from builder.repository.versions import Version
from builder.serve.control import ModelControl
from builder.spec.pipeline import PipelineSpec
from builder.spec.versions import Canary as Limits

SPEC = {"metadata": {"name": "p", "owner": "tests"}, "target": {"weights": "w.gguf"}}


@dataclass
class FakeFront:
    candidate: Mapping[str, int] = field(default_factory=lambda: {"http": 1, "grpc": 2, "metrics": 3})
    socket: str = "socket"
    shares: list[int] = field(default_factory=list)
    draining: int = 0

    def set_share(self, percent: int) -> None:
        self.shares.append(percent)

    def sees_candidate(self) -> bool:
        return True

    def candidate_requests(self) -> int:
        self.draining = max(0, self.draining - 1)
        return self.draining


class FakeTriton:
    """Its servers that were started, by repository."""

    running: ClassVar[list[Path]] = []
    broken = False

    def __init__(self, repository: Path, pipeline: str, ports: Mapping[str, int], log: Any = None) -> None:
        self.repository = repository

    def start(self) -> None:
        assert (self.repository / "p" / "config.pbtxt").is_file()
        if self.broken:
            raise ServeError("tritonserver ended with status 1:\nbecause")
        self.running.append(self.repository)

    def stop(self) -> None:
        self.running.remove(self.repository)


class FakeServer(ModelControl):
    def load(self, model: str) -> None:
        if self.port == 666:
            raise CheckError(f"{model} cannot be loaded")


@pytest.fixture
def candidate(tmp_path: Path) -> Version:
    """Version 2; version 1 is live."""
    for number in (1, 2):
        release = Release("p", PipelineSpec.model_validate(SPEC).model_dump(mode="json"), {"w": str(number)}, {}, {})
        version, _ = publish(tmp_path / "repository", release, promote=False)
    return version


Run = Callable[..., CanaryRun]


@pytest.fixture
def run(candidate: Version, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Makes a canary whose watch ends with a given decision."""
    front = FakeFront()

    def make(decision: str = PROMOTE, success: str = KEPT, port: int = 1, watched: Callable[[], None] = lambda: None) -> CanaryRun:
        def watch(heard: Any) -> Look:
            assert front.shares[-1] == 10 and FakeTriton.running
            watched()
            return Look(decision, "what the watch saw", 1.0, Arm(), Arm(), ())

        monkeypatch.setattr(promote, "Watch", lambda *_: SimpleNamespace(run=watch))
        compared = Comparison("success drop", success, 1.0, 0.0, 0.05)
        monkeypatch.setattr(promote, "Probes", lambda *_: SimpleNamespace(compare=lambda limit: compared))
        return CanaryRun(candidate, Limits(), (), [FakeServer("127.0.0.1", port)], front)  # type: ignore[arg-type]

    monkeypatch.setattr(promote, "Triton", FakeTriton)
    monkeypatch.setattr(FakeTriton, "broken", False)
    monkeypatch.setattr(promote, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(promote, "read_tokenizer", lambda folder: SimpleNamespace(chats=False))
    yield make
    assert front.shares[-1:] in ([], [0])
    assert FakeTriton.running == []
    assert not (candidate.repository / FOLDER / "p").exists()
    with locked(candidate.repository, "p"), locked(candidate.repository, "p", CANARY):
        pass  # nothing holds them any more


def state(candidate: Version) -> tuple[int | None, list[tuple[str, int | None, int]]]:
    """What is live, and what happened since the first publish."""
    live = live_version(candidate.repository, "p")
    events = [(event.action, event.before, event.after) for event in history(candidate.repository, "p")]
    return live.number if live else None, events[1:]


def test_a_good_version_goes_live_and_its_requests_end_before_its_server_does(run: Run, candidate: Version) -> None:
    made = run()
    made.front.draining = 3  # type: ignore[attr-defined]
    assert made.run().promoted
    assert made.front.draining == 0  # type: ignore[attr-defined]
    assert state(candidate) == (2, [("canary", 1, 2), ("promote", 1, 2)])
    assert history(candidate.repository, "p")[-1].measured["decision"] == "promote"


def test_a_version_that_breaks_a_limit_is_taken_back_with_the_numbers(run: Run, candidate: Version) -> None:
    made = run(TAKE_BACK).run()
    assert (made.promoted, made.live) == (False, 1)
    assert state(candidate) == (1, [("canary", 1, 2), ("abort", 2, 1)])
    last = history(candidate.repository, "p")[-1]
    assert (last.why, last.measured["why"]) == ("what the watch saw", "what the watch saw")


def test_a_version_that_answers_wrong_never_gets_a_share(run: Run, candidate: Version) -> None:
    canary = run(success=BROKEN)
    assert canary.run().look.why.startswith("success drop 0 against 1")
    assert set(canary.front.shares) == {0}  # type: ignore[attr-defined]
    assert state(candidate)[0] == 1


def test_an_interrupted_canary_is_taken_back(run: Run, candidate: Version) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(watched=interrupted).run()
    assert state(candidate) == (1, [("canary", 1, 2), ("abort", 2, 1)])
    assert history(candidate.repository, "p")[-1].why == "interrupted"


def test_a_version_that_the_live_servers_cannot_load_is_taken_back(run: Run, candidate: Version) -> None:
    with pytest.raises(CheckError, match="cannot be loaded"):
        run(port=666).run()
    assert state(candidate) == (1, [("canary", 1, 2), ("failed", 1, 2), ("abort", 2, 1)])


def test_a_version_whose_server_does_not_start_is_refused(run: Run, candidate: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTriton, "broken", True)
    with pytest.raises(CheckError, match="version 2 cannot be tried: tritonserver ended with status 1"):
        run().run()
    assert state(candidate) == (1, [("failed", 1, 2)])


def test_another_command_s_version_stays_live(run: Run, candidate: Version) -> None:
    def publish_another() -> None:
        publish(candidate.repository, Release("p", candidate.manifest.spec, {"w": "3"}, {}, {}))

    made = run(watched=publish_another).run()
    assert (made.live, state(candidate)[0]) == (3, 3)
    assert state(candidate)[1][-1] == ("abort", 2, 3)


def test_the_live_version_and_one_whose_files_changed_are_not_tried(run: Run, candidate: Version) -> None:
    canary = run()
    (candidate.decode_folder / "model.py").write_text("other")
    with pytest.raises(CheckError, match="version 2 must not go live"):
        canary.run()
    with pytest.raises(RepositoryError, match="version 1 is live already"):
        CanaryRun(Version(candidate.repository, "p", 1), Limits(), (), canary.servers, canary.front).run()
    with pytest.raises(RepositoryError, match="no server runs"):
        CanaryRun(candidate, Limits(), (), [], canary.front).run()


def test_while_one_is_tried_no_other_is_and_none_is_promoted_at_once(run: Run, candidate: Version) -> None:
    with locked(candidate.repository, "p", CANARY):
        with pytest.raises(RepositoryError, match="another command is"):
            run().run()
        with pytest.raises(RepositoryError, match="another command is"):
            promote_at_once(candidate, [])
    assert promote_at_once(candidate, []).after == 2
    assert roll_back(candidate.repository, "p", None, []).after == 1
