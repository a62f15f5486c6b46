"""The gate of the build, on a tiny random model: what passes is published with its proof, what does not is not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from builder.build import BuildResult, build_pipeline
from builder.decoding import acceptance
from builder.errors import CheckError
from builder.quality import distribution, protocol
from builder.quality.protocol import Verification, verify
from builder.repository.live import serving_version
from builder.repository.models.folder import read_spec
from builder.repository.versions import versions
from tests.integration.conftest import tiny_spec

Build = Callable[..., BuildResult]


@pytest.fixture
def build(tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setattr(protocol, "QUICK_SAMPLES", 150)

    def run(**options: bool) -> BuildResult:
        path = tmp_path / "tiny.yaml"
        spec = tiny_spec("tiny", tiny_weights, quality={"suites": ["facts", "code"]})
        path.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
        return build_pipeline(path, tmp_path / "repository", **options)

    return run


def test_a_version_is_published_with_its_report_and_its_baseline(build: Build, tmp_path: Path) -> None:
    quality = build().results["quality"]
    assert (quality["verdict"], quality["form"]) == ("passed", "quick")
    version = serving_version(tmp_path / "repository", "tiny")
    report = json.loads((version.decode_folder / "quality" / "report.json").read_text())
    assert report["token_identity"] == 1.0 and report["distribution"]["control_caught"] and report["distribution"]["rounds"] > 0
    assert len(report["cases"]) == 28
    assert report["baseline"]["latency"]["total_p95"] > 0
    page = (version.decode_folder / "quality" / "report.html").read_text()
    assert page.count("<svg") == 3 and "http-equiv" not in page and "src=" not in page
    assert "tiny_decode/quality/report.json" in version.manifest.files
    version.manifest.check(version.folders)


def test_other_tokens_than_plain_decoding_are_published_by_nobody(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_all(best: Sequence[int], draft: Sequence[int]) -> tuple[int, int]:
        return len(draft), best[len(draft)]

    monkeypatch.setattr(acceptance, "verify_greedy", keep_all)
    with pytest.raises(CheckError, match="token_identity failed") as refusal:
        build()
    assert refusal.value.exit_code == 1
    assert versions(tmp_path / "repository", "tiny") == []
    report = json.loads((tmp_path / "repository/.quality/tiny/refused/report.json").read_text())
    first = report["differences"][0]
    assert first["best_logit"] >= first["second_logit"] and first["plain"] == first["best"]


def test_without_a_gate_the_manifest_says_so(build: Build) -> None:
    assert build(verify=False).results["quality"] == {"verdict": "skipped"}


def test_a_wrong_acceptance_rule_fails_and_a_control_that_is_missed_is_inconclusive(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(verify=False)
    folder = serving_version(tmp_path / "repository", "tiny").decode_folder
    wanted = Verification(folder, read_spec(folder), tmp_path, "1", quick=True)
    with distribution.broken_acceptance():
        assert verify(wanted).distribution.verdict == "failed"
    monkeypatch.setattr(distribution, "broken_acceptance", contextlib.nullcontext)
    report = verify(wanted)
    assert report.distribution.verdict == "inconclusive"
    assert report.verdict == "inconclusive" and not report.passed
