"""A version is tried on real servers behind a real HAProxy: a good one is promoted, bad ones are taken back, and no request fails."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
import yaml

from builder.build import build_pipeline
from builder.canary.promote import CanaryRun, Promotion
from builder.drills.bad_versions import SLOW, WRONG, publish_bad
from builder.drills.load import Load
from builder.quality.cases import Case, Check
from builder.repository.candidate_view import FOLDER
from builder.repository.live import live_version, serving_version
from builder.repository.models.folder import read_tokenizer
from builder.repository.version_history import history
from builder.repository.versions import Version
from builder.serve import client
from builder.serve.front import Front
from builder.serve.front_control import FrontControl, running_front
from builder.serve.ports import free_ports
from builder.serve.servers import running_servers
from builder.serve.triton import Triton
from builder.spec.versions import Canary as Limits
from tests.integration.conftest import tiny_spec
from tests.integration.talk import eventually

LOAD_SECONDS = 120  # most that three processes take to start, on a busy machine
CODE = "from builder.cli.main import main; main()"
TOKENS = 24
ANY = (Case(suite="own", name="any", prompt="hello", check=Check(pattern="."), max_tokens=4),)  # random weights know no answer


@dataclass
class Users:
    """Context manager: streams over gRPC and one client over HTTP, whose requests have ids, ask through the front until it is left."""

    front: Front
    answers: list[tuple[str, str]] = field(default_factory=list)  # of HTTP: request id, and version or what went wrong
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        parameters: dict[str, str | int | float | bool] = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.7}
        self.grpc = Load(f"127.0.0.1:{self.front.ports['grpc']}", "tiny", 3, parameters)
        self.grpc.__enter__()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.grpc.__exit__(None, None, None)

    @property
    def failed(self) -> list[str]:
        return [str(asked.error) for asked in self.grpc.failed] + [said for _, said in self.answers if said not in ("1", "2", "3", "4")]

    def versions(self) -> set[str]:
        return {str(asked.stats.get("version")) for asked in list(self.grpc.asked)} | {said for _, said in self.answers}

    def recent(self) -> set[str]:
        return {str(asked.stats.get("version")) for asked in self.grpc.asked[-20:]} | {said for _, said in self.answers[-10:]}

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            request_id = f"user-{number % 20}"
            self.answers.append((request_id, self._ask(request_id)))
            number += 1

    def _ask(self, request_id: str) -> str:
        body = json.dumps({"text_input": "hello", "max_tokens": TOKENS, "ignore_eos": True})
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.front.ports["http"], timeout=60)
            connection.request("POST", "/v2/models/tiny/generate", body, {"X-Request-ID": request_id})
            response = connection.getresponse()
            answer = response.read()
            connection.close()
            return str(json.loads(json.loads(answer)["decode_stats"])["version"]) if response.status == 200 else answer.decode()
        except (OSError, http.client.HTTPException) as error:
            return repr(error)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, tiny_weights: Path) -> Path:
    """Version 1 is live, version 2 waits for its promotion; the versions differ in their draft length."""
    path = tmp_path_factory.mktemp("canary") / "tiny.yaml"
    for draft_tokens in (2, 3):
        spec = tiny_spec("tiny", tiny_weights, speculation={"max_draft_tokens": draft_tokens}, quality={"suites": ["refusals"]})
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
        build_pipeline(path, path.parent / "model_repository", verify=False, promote=False)
    return path


@pytest.fixture(scope="module")
def server(pipeline: Path) -> Iterator[Triton]:
    with Triton(pipeline.parent / "model_repository", "tiny", free_ports()) as server:
        yield server


@pytest.fixture(scope="module")
def front(server: Triton) -> Iterator[Front]:
    ports = free_ports()
    with Front(
        server.repository, "tiny", running_servers(server.repository, "tiny"), {"http": ports["http"], "grpc": ports["grpc"]}
    ) as front:
        yield front


def control(front: Front) -> FrontControl:
    found = running_front(front.repository, "tiny")
    assert found is not None
    return found


def promote(front: Front, number: int, duration: str = "3s", cases: tuple[Case, ...] = ANY) -> Promotion:
    limits = Limits.model_validate({"percent": 50, "duration": duration, "min_requests": 10, "max_p95_ratio": 4.0})
    servers = running_servers(front.repository, "tiny")
    return CanaryRun(Version(front.repository, "tiny", number), limits, cases, servers, control(front)).run()


def live(front: Front) -> int | None:
    found = live_version(front.repository, "tiny")
    return found.number if found else None


@pytest.mark.slow  # a server more to start
def test_a_promotion_that_is_killed_leaves_the_live_version_serving_and_the_next_one_begins_anew(front: Front, pipeline: Path) -> None:
    with Users(front) as users:
        command = [sys.executable, "-c", CODE, "promote", str(pipeline), "--canary", "50", "--repository", str(front.repository)]
        killed = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually(lambda: users.versions() == {"1", "2"}, LOAD_SECONDS)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        eventually(lambda: not control(front).sees_candidate(), LOAD_SECONDS)
        since, answers = time.monotonic(), len(users.answers)
        eventually(lambda: len(users.grpc.since(since)) > 20 and len(users.answers) > answers + 10, LOAD_SECONDS)
        assert {(str(asked.stats.get("version")), asked.error) for asked in users.grpc.since(since)} == {("1", None)}
        assert {said for _, said in users.answers[answers + 1 :]} == {"1"}
    assert live(front) == 1
    assert control(front).share() == 50  # nobody is left to take it back; nobody is there to get it


def test_a_slow_version_is_taken_back_and_a_good_one_is_promoted_without_a_failed_request(front: Front, tmp_path: Path) -> None:
    good = live_version(front.repository, "tiny")
    assert good is not None
    slow = publish_bad(good, SLOW, tmp_path, (), promote=False)
    with Users(front) as users:
        made = promote(front, slow.number, "60s")
        assert (made.promoted, live(front)) == (False, 1)
        assert made.look.why.startswith("p95 ratio")
        eventually(lambda: users.recent() == {"1"})
        made = promote(front, 2)
        assert (made.promoted, made.live, live(front)) == (True, 2, 2), made.to_json()
        eventually(lambda: users.recent() == {"2"})
    assert users.failed == []
    assert min(arm["requests"] for arm in (made.to_json()["stable"], made.to_json()["tried"])) >= 10
    assert control(front).share() == 0
    assert not (front.repository / FOLDER / "tiny").exists()
    events = [(event.action, event.before, event.after) for event in history(front.repository, "tiny")]
    assert events[-4:] == [("canary", 1, 3), ("abort", 3, 1), ("canary", 1, 2), ("promote", 1, 2)]
    assert history(front.repository, "tiny")[-1].measured["tried"]["requests"] >= 10


@pytest.mark.slow  # a server more to start
def test_a_version_that_answers_wrong_is_taken_back_before_a_user_asks_it(front: Front, tmp_path: Path) -> None:
    good = serving_version(front.repository, "tiny")
    wrong = publish_bad(good, WRONG, tmp_path, (), promote=False)
    url = f"127.0.0.1:{front.ports['grpc']}"

    def answer(prompt: str) -> str:
        asked = (None, [{"role": "user", "content": prompt}]) if read_tokenizer(good.decode_folder).chats else (prompt, None)
        chunks = client.generate(url, "tiny", prompt=asked[0], messages=asked[1], parameters={"max_tokens": 16})
        return "".join(chunk.text for chunk in chunks)

    prompts = [f"{word} {word}" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "blue", "red")]
    cases = tuple(
        Case(suite="own", name=prompt, prompt=prompt, check=Check(pattern=re.escape(answer(prompt))), max_tokens=16) for prompt in prompts
    )
    with Users(front) as users:
        made = promote(front, wrong.number, "60s", cases)
    assert (made.promoted, live(front)) == (False, good.number)
    assert made.look.why.startswith("success drop 0 against 1")
    assert users.versions() == {str(good.number)}
    assert users.failed == []
