"""The ledger of a real server: it agrees with the counters and the clients, and survives kill -9."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.chargeback.usage import sum_folder
from builder.cli import main
from builder.serve.client import generate
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from tests.integration import talk
from tests.integration.conftest import publish_echo, tiny_spec


@pytest.fixture
def report(tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """report(server, "--client", ...) -> exit code and the JSON document of `builder chargeback report`."""

    def call(server: Triton, *arguments: str) -> tuple[int, dict[str, Any]]:
        pipeline = tmp_path / f"{server.pipeline}.yaml"
        pipeline.write_text(yaml.safe_dump(tiny_spec(server.pipeline, tiny_weights).model_dump(mode="json")))
        url = f"http://127.0.0.1:{server.ports['metrics']}/metrics"
        command = ["builder", "chargeback", "report", str(pipeline), "--repository", str(server.repository), "--json"]
        monkeypatch.setattr(sys, "argv", [*command, "--metrics-url", url, *arguments])
        with pytest.raises(SystemExit) as end:
            main.main()
        return int(end.value.code or 0), json.loads(capsys.readouterr().out)

    return call


def ask(server: Triton, number: int) -> dict[str, Any]:
    tenant = ("search", "support", "unheard-of")[number % 3]
    url = f"127.0.0.1:{server.ports['grpc']}"
    parameters = {"max_tokens": 3 + number % 5, "tenant": tenant, "speculation": ("on", "off")[number % 2]}
    for chunk in generate(url, server.pipeline, prompt=f"the cat {number}", parameters=parameters):
        last = chunk
    usage = last.usage or {}
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    tenant = tenant if number % 3 < 2 else "other"
    return {"tenant": tenant, "input": usage["prompt_tokens"] - cached, "cached_input": cached, "output": usage["completion_tokens"]}


def client_counts(answers: list[dict[str, Any]], since: datetime) -> dict[str, Any]:
    tenants = {
        tenant: {"requests": sum(answer["tenant"] == tenant for answer in answers)}
        | {kind: sum(a[kind] for a in answers if a["tenant"] == tenant) for kind in ("input", "cached_input", "output")}
        for tenant in {answer["tenant"] for answer in answers}
    }
    return {"since": since.isoformat(), "until": (datetime.now(UTC) + timedelta(seconds=1)).isoformat(), "tenants": tenants}


def test_ledger_counters_and_clients_agree_and_a_count_that_differs_is_named(tiny_server: Triton, report: Any, tmp_path: Path) -> None:
    since = datetime.now(UTC)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(tiny_server, number), range(60)))
    counts = tmp_path / "client.json"
    counts.write_text(json.dumps(client_counts(answers, since)))
    talk.refused(tiny_server, {"text_input": "x", "max_tokens": 0})
    code, document = report(tiny_server, "--client", str(counts))
    assert [check["differences"] for check in document["reconciliation"]] == [[], []]
    assert code == 0
    assert {row["tenant"] for row in document["by_tenant"]} >= {"search", "support", "other"}
    assert {row["optimisation"] for row in document["by_optimisation"]} == {"plain", "speculative"}
    assert all(row["compute_seconds"] > 0 for row in document["by_tenant"])

    wrong = client_counts(answers, since)
    wrong["tenants"]["search"]["output"] += 1
    counts.write_text(json.dumps(wrong | {"until": json.loads(counts.read_text())["until"]}))
    code, document = report(tiny_server, "--client", str(counts))
    assert code == 1
    assert "output search" in [difference["what"] for difference in document["reconciliation"][1]["differences"]]


def test_requests_that_were_cancelled_are_in_the_ledger_as_in_the_counters(echo_server: Triton, report: Any) -> None:
    def abandon_one() -> bool:
        """A slow machine may come too late to cancel it."""
        url = f"127.0.0.1:{echo_server.ports['grpc']}"
        chunks = generate(url, "echo", prompt="the cat", parameters={"max_tokens": 240})
        next(chunks)
        chunks.close()
        return bool(report(echo_server)[1]["total"]["cancelled"])

    talk.eventually(abandon_one)
    code, document = report(echo_server)
    assert (code, document["reconciliation"][0]["differences"]) == (0, [])


def test_kill_9_loses_no_record_of_an_answer_that_was_seen_to_end(tmp_path: Path, tiny_weights: Path) -> None:
    repository = tmp_path / "model_repository"
    publish_echo(repository, tiny_weights)
    folder = repository / ".ledger" / "echo"
    server = Triton(repository, "echo", free_ports())
    with server:
        seen = [talk.generate(server, text_input="the cat", max_tokens=4, tenant="search") for _ in range(5)]
        assert server.pid is not None
        os.killpg(server.pid, signal.SIGKILL)
    assert [path.suffix for path in folder.iterdir()] == [".part"]
    with Triton(repository, "echo", free_ports()) as server:
        seen.append(talk.generate(server, text_input="the cat", max_tokens=4, tenant="search"))
        assert sorted(path.suffix for path in folder.iterdir()) == [".jsonl", ".part"]
    groups = sum_folder(folder)
    assert sum(group.usage.requests for group in groups) == len(seen)
    assert sum(group.usage.output for group in groups) == sum(json.loads(answer["usage"])["completion_tokens"] for answer in seen)
    assert [path.suffix for path in folder.iterdir()] == [".jsonl", ".jsonl"]
