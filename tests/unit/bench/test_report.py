"""The report: its JSON, its page, and what the command line does with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from builder import build
from builder.bench import session
from builder.bench.files import render, write_report
from builder.bench.identity import Identity
from builder.bench.lab import Setting
from builder.bench.report import Report
from builder.bench.session import Options
from builder.cli import main
from builder.errors import SpecError, TandemError
from builder.repository import live, version_bench

DEMO = str(Path(__file__).parents[3] / "pipelines" / "smollm2.yaml")
KEYS = {"plain_tok_s", "bandwidth_gb_s", "limit_share", "triton_share", "identity", "recommended_k", "speculative", "peers"}
ROW_KEYS = {"class", "method", "k", "tok_s", "speedup", "predicted_speedup", "acceptance_rate", "acceptance_length"}


def test_the_json_has_the_promised_keys_and_nothing_that_json_cannot_hold(report: Report) -> None:
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert set(document) >= KEYS
    assert len(document["speculative"]) == 18
    assert all(set(row) >= ROW_KEYS for row in document["speculative"])
    assert document["recommended_k"] == 2
    assert document["bandwidth_gb_s"] == pytest.approx(27.4)
    assert document["limit_share"] == pytest.approx(0.9)
    assert document["triton_share"] == pytest.approx(0.95)
    assert document["peers"][0]["ours_over_peer"] == pytest.approx(1.2)


def test_the_page_needs_nothing_from_elsewhere(report: Report) -> None:
    page = render(report)
    namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert "://" not in re.sub(r"<!DOCTYPE svg[^>]*>", "", namespaces)
    assert "<script" not in page
    assert page.count("<svg") == 4


def test_what_is_shown_on_the_page_is_escaped_and_the_plots_are_not(report: Report) -> None:
    page = render(report)
    assert "A &lt;CPU&gt;" in page
    assert "&lt;svg" not in page


def test_a_report_without_speculation_shows_the_roofline_alone(report: Report) -> None:
    bare = replace(report, samples=(), results=(), best=None, triton=None, peers=(), costs={})
    assert render(bare).count("<svg") == 1
    assert bare.to_json()["recommended_k"] is None


def test_both_files_are_written_into_a_new_folder(report: Report, tmp_path: Path) -> None:
    page = write_report(report, tmp_path / "reports" / "one")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((page.parent / "report.json").read_text(encoding="utf-8"))["pipeline"] == "tiny"


def test_a_report_that_cannot_be_written_says_where(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TandemError, match="the report cannot be written") as caught:
        write_report(report, tmp_path / "file" / "inside")
    assert str(tmp_path / "file" / "inside") == caught.value.where


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(SpecError, match="cannot draft 17 tokens"):
        Options(draft_lengths=(2, 17)).lengths(4)
    assert Options(quick=True).lengths(3) == (3,)
    assert Options().lengths(3) == (1, 2, 3, 4)
    assert Options(draft_lengths=(4, 2, 4)).lengths(3) == (2, 4)
    assert Options(quick=True).answer_tokens == 64


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, report: Report, tmp_path: Path) -> Any:
    """call(report, *arguments) -> the result of `builder bench` with measuring left out, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(build, "build_pipeline", lambda *_: None)
    monkeypatch.setattr(live, "serving_version", lambda *_: SimpleNamespace(repository=tmp_path / "models", pipeline="tiny", number=3))

    def run(made: Report, *arguments: str) -> Any:
        monkeypatch.setattr(session, "run_bench", lambda *_: made)
        return CliRunner().invoke(main.app, ["bench", DEMO, *arguments])

    return run


def test_the_command_writes_its_report_and_prints_one_document(call: Any, report: Report, tmp_path: Path) -> None:
    done = call(report, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["plain_tok_s"] == 95.0
    (folder,) = (tmp_path / "reports").iterdir()
    assert re.fullmatch(r"bench-smollm2-\d{8}T\d{6}Z", folder.name)
    assert {path.name for path in folder.iterdir()} == {"report.html", "report.json"}
    kept = json.loads((tmp_path / "models" / version_bench.FOLDER / "tiny" / "3.json").read_text())
    assert (kept["plain_tok_s"], set(kept)) == (95.0, set(version_bench.KEYS))


def test_a_token_that_differs_is_named_and_makes_the_exit_code_one(call: Any, report: Report) -> None:
    identity = Identity()
    identity.check("tides", Setting(0, "none"), [1, 2, 3])
    identity.check("tides", Setting(4, "hybrid"), [1, 2, 4], among=8)
    done = call(replace(report, identity=identity))
    assert done.exit_code == 1
    assert "1 of 2 answers differ" in done.stdout
    assert "prompt tides, token 2, hybrid at K=4, 8 requests at once" in done.stdout


@pytest.mark.parametrize(("arguments", "message"), [(("--k", "1,x"), "no list of numbers"), (("--classes", "fact"), "Did you mean facts")])
def test_wrong_options_are_told_before_anything_runs(call: Any, report: Report, arguments: tuple[str, ...], message: str) -> None:
    done = call(report, *arguments)
    assert isinstance(done.exception, SpecError)
    assert message in str(done.exception)
