"""Ledger, counters and clients over one load with cancels and broken requests: the same to the token."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from builder.serve.triton import Triton
from builder.spec.load import LoadedPipeline, load_pipeline
from loadtest.agreement import AgreementOptions, run_agreement
from tests.integration.conftest import tiny_spec


@pytest.fixture
def loaded(tmp_path: Path, tiny_weights: Path) -> LoadedPipeline:
    pipeline = tmp_path / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights).model_dump(mode="json")))
    return load_pipeline(pipeline)


def agree(loaded: LoadedPipeline, server: Triton, folder: Path, requests: int, seconds: float) -> Counter[str]:
    options = AgreementOptions(requests, users=8, raw=True, round_seconds=seconds)
    made = run_agreement(loaded, server.repository, server.ports, options, folder)
    assert made.with_counters.differences == ()
    assert made.with_clients.differences == ()
    assert made.passed, [sample.error for sample in made.samples if sample.outcome == "failed"]
    assert made.with_counters.compared > 10
    # requests and three kinds of tokens of three tenants; and of `trial`, nothing, where an earlier test has asked for it on this server
    assert made.with_clients.compared in (4 * 3, 4 * 4)
    return Counter(sample.outcome for sample in made.samples)


def test_all_three_counts_agree_over_hundreds_of_requests(loaded: LoadedPipeline, tiny_server: Triton, tmp_path: Path) -> None:
    outcomes = agree(loaded, tiny_server, tmp_path, requests=300, seconds=6)
    assert outcomes["done"] > 100
    assert outcomes["refused"] > 5
    assert outcomes["cancelled"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_three_counts_agree_over_ten_thousand_requests(loaded: LoadedPipeline, tiny_server: Triton, tmp_path: Path) -> None:
    assert agree(loaded, tiny_server, tmp_path, requests=10_000, seconds=60).total() >= 10_000
