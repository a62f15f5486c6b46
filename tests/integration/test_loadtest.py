"""Load tests against the real tritonserver: what the clients count is what the server counts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.serve.triton import Triton
from builder.spec.load import LoadedPipeline, load_pipeline
from loadtest.endurance import SoakOptions, run_soak
from loadtest.files import write_report
from loadtest.report import Report
from loadtest.session import Options, run_loadtest
from tests.integration.conftest import tiny_spec
from tests.integration.talk import settled

WORKLOAD = {
    "description": "All protocols, short.",
    "prompts": {"facts": 1, "chat": 1},
    "protocols": {"generate_stream": 1, "generate": 1, "grpc": 1},
    "tenants": {"search": 2, "support": 1, "stranger": 1},
    "max_tokens": {"min": 2, "max": 24},
}
KINDS = ("input", "cached_input", "output")  # of tokens, as both sides name them


@pytest.fixture
def loaded(tmp_path: Path, tiny_weights: Path) -> LoadedPipeline:
    pipeline = tmp_path / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights).model_dump(mode="json")))
    return load_pipeline(pipeline)


def run(loaded: LoadedPipeline, server: Triton, folder: Path, seconds: float, workload: dict[str, Any], **options: Any) -> Report:
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump({**WORKLOAD, **workload}))
    urls = {"url": f"127.0.0.1:{server.ports['http']}", "grpc_url": f"127.0.0.1:{server.ports['grpc']}"}
    asked = Options(workload=str(file), users=4, minutes=seconds / 60, raw=True, **urls, **options)
    return run_loadtest(loaded, folder, asked, folder / "run")


def server_counts(server: Triton) -> dict[str, float]:
    return {
        f"{tenant} {kind}": settled(server, "tandem_tokens", tenant=tenant, token_type=kind)
        for tenant in ("search", "support", "other")
        for kind in KINDS
    }


def test_clients_and_server_count_the_same_tokens(loaded: LoadedPipeline, tiny_server: Triton, tmp_path: Path) -> None:
    before = server_counts(tiny_server)
    faults = {"cancel": 0.2, "malformed": 0.1}
    made = run(loaded, tiny_server, tmp_path, 4, {"faults": faults, "max_tokens": {"min": 2, "max": 60}}, ab=True)
    after = server_counts(tiny_server)
    seen = {f"{tenant} {kind}": used[kind] for tenant, used in made.clients["tenants"].items() for kind in KINDS}
    assert {key: after[key] - before[key] for key in seen} == seen
    outcomes = Counter(sample.outcome for sample in made.samples)
    assert outcomes["done"] > 20
    assert outcomes["cancelled"] > 0
    assert outcomes["failed"] == 0, made.errors()
    assert {sample.protocol for sample in made.samples if sample.complete} == {"generate_stream", "generate", "grpc"}
    assert all(sample.outcome == "refused" for sample in made.samples if sample.fault == "malformed")
    assert made.arms["plain"].acceptance_rate is None
    assert made.arms["speculative"].acceptance_rate is not None
    page = write_report(made, tmp_path / "run")
    document = json.loads((page.parent / "report.json").read_text())
    assert set(document["arms"]) == {"plain", "speculative"}
    assert document["ratio"] > 0
    assert "<svg" in page.read_text()


def test_workers_of_locust_share_the_load(loaded: LoadedPipeline, tiny_server: Triton, tmp_path: Path) -> None:
    made = run(loaded, tiny_server, tmp_path, 3, {"max_tokens": {"min": 2, "max": 8}}, workers=2)
    workers = {sample.key.split("/")[2] for sample in made.samples}
    assert workers == {"0", "1"}
    assert made.served.failures == 0, made.errors()
    assert len({sample.key for sample in made.samples}) == len(made.samples)


def test_due_requests_do_not_wait_for_those_before_them(loaded: LoadedPipeline, tiny_server: Triton, tmp_path: Path) -> None:
    made = run(loaded, tiny_server, tmp_path, 3, {"arrivals": "constant", "rate": 12, "max_tokens": {"min": 60, "max": 60}})
    due = sorted(sample.due for sample in made.samples if sample.block == 1)
    assert len(due) == pytest.approx(36, abs=4)  # four users share the rate
    assert made.served.failures == 0, made.errors()
    assert all(sample.started >= sample.due for sample in made.samples)


def test_a_short_soak_leaves_no_trace(loaded: LoadedPipeline, built_repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    faults = {"cancel": 0.1, "disconnect": 0.1, "malformed": 0.05}
    file.write_text(yaml.safe_dump({**WORKLOAD, "max_tokens": {"min": 1, "max": 60}, "faults": faults}))
    asked = SoakOptions(str(file), users=4, minutes=12 / 60, kills=2, raw=True, warm_ups=1)
    made = run_soak(loaded, built_repository, asked, tmp_path / "soak")
    assert made.before.blocks > 0
    found = {finding.name: finding.passed for finding in made.findings if finding.name != "memory"}  # seconds settle nothing there
    assert found == dict.fromkeys(("blocks", "rest", "identity", "refusals", "failures", "hang"), True), made.findings
    assert made.readings
    assert {sample.outcome for sample in made.samples} >= {"done", "cancelled", "left", "refused"}
    assert {sample.block for sample in made.samples} == {0, 1, 2, 3}
