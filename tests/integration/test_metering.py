"""What metrics and ledger cost is measured on a real server; what it comes to is for a quiet machine to say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from builder.repository.ensemble import ModelNames
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.spec.load import load_pipeline
from loadtest.metering import BARE, METERED, block, copy_version, measure_metering, switch
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


def test_a_server_is_compared_with_itself_without_metrics_and_ledger(built_repository: Path, pipeline: Path, tmp_path: Path) -> None:
    folder = tmp_path / "meter"
    folder.mkdir()
    before = times(built_repository)
    made = measure_metering(load_pipeline(pipeline), built_repository, folder, blocks=2, streams=2, tokens=12)
    assert all(made.tokens_per_second[arm].median > 0 for arm in (METERED, BARE))
    assert math.isfinite(made.cost.median) and made.verdict == "inconclusive", "two blocks show nothing"
    assert 0 < made.scrape.median <= made.slowest_scrape
    assert times(built_repository) == before, "a server that serves the version would load it anew"


def test_while_metering_is_off_the_ledger_hears_of_no_request(built_repository: Path, tmp_path: Path) -> None:
    off = tmp_path / "off"
    copy = copy_version(built_repository, "tiny", tmp_path / "model_repository", off)
    counts = []
    with (tmp_path / "log").open("w") as log, Triton(copy, "tiny", free_ports(), log=log) as server:
        for bare in (False, True, False):
            switch(off, bare)
            block(server, 2, 4)
            counts.append(sum(len(file.read_text().splitlines()) for file in (copy / ".ledger").rglob("*.part")))
    assert counts == [2, 2, 4]
