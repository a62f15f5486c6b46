"""What metrics and ledger cost is measured on two real servers; what it comes to is for a quiet machine to say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from builder.repository.ensemble import ModelNames
from builder.spec.load import load_pipeline
from loadtest.metering import BARE, METERED, measure_metering
from tests.integration.conftest import tiny_spec


@pytest.fixture
def pipeline(tmp_path: Path, tiny_weights: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights).model_dump(mode="json")))
    return file


def times(repository: Path) -> dict[Path, tuple[int, int]]:
    """Of the engines' files, as Triton looks at them."""
    found = (repository / ModelNames.of("tiny").decode / "1").rglob("*")
    return {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in found if path.is_file()}


def test_a_server_with_metrics_and_ledger_is_compared_with_one_without(built_repository: Path, pipeline: Path, tmp_path: Path) -> None:
    folder = tmp_path / "meter"
    folder.mkdir()
    before = times(built_repository)
    made = measure_metering(load_pipeline(pipeline), built_repository, folder, pairs=2, streams=2, tokens=12)
    assert all(made.tokens_per_second[arm].median > 0 for arm in (METERED, BARE))
    assert math.isfinite(made.cost.median)
    assert 0 < made.scrape.median <= made.slowest_scrape
    ledgers = {arm: any((folder / arm / ".ledger").rglob("*.jsonl")) for arm in (METERED, BARE)}
    assert ledgers == {METERED: True, BARE: False}, "the bare server writes no ledger"
    model = f"{ModelNames.of('tiny').decode}/1/model.py"
    assert (built_repository / model).read_text() != (folder / BARE / model).read_text(), "the original is not touched"
    assert times(built_repository) == before, "a server that serves the version would load it anew"
