"""The exporter against readings of known content."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from builder.errors import ServeError
from builder.repository.flags import Flags
from builder.serve.exporter import PipelineCollector, numbers
from builder.serve.processes import ProcessUse
from builder.spec.pipeline import PipelineSpec
from builder.telemetry.exporter_catalogue import EXPORTER_CATALOGUE
from builder.telemetry.scrape import Scrape, parse

HISTOGRAMS = "".join(
    f'# TYPE tandem_{name} histogram\ntandem_{name}_bucket{{model="p",version="1",le="0.1"}} 10\n'
    f'tandem_{name}_bucket{{model="p",version="1",le="+Inf"}} 10\n'
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
)


@pytest.fixture
def spec() -> PipelineSpec:
    sections: dict[str, Any] = {"metadata": {"name": "p", "owner": "team@example.com"}, "target": {"weights": "w"}}
    return PipelineSpec.model_validate(sections | {"chargeback": {"per_million_tokens": {"output": 0.4}, "tenants": ["search"]}})


RESULTS = {"acceptance": {"rate": 0.8, "prompts": ["a"]}, "identical": True}
PUBLISHED = SimpleNamespace(number=7, manifest=SimpleNamespace(results=RESULTS))


def export(spec: PipelineSpec, read: Any, repository: Path) -> Scrape:
    registry = CollectorRegistry()
    use = [ProcessUse("tritonserver", 12.5, 1000), ProcessUse("p_decode", 99.0, 5000)]
    registry.register(PipelineCollector(spec, repository, read, processes=lambda port: use, clock=lambda: 0.0))
    return parse(generate_latest(registry).decode())


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("newest", "serving_version"):
        monkeypatch.setattr(f"builder.serve.exporter.{name}", lambda repository, pipeline: PUBLISHED)
    (tmp_path / ".flags").mkdir()
    (tmp_path / ".flags" / "p.json").write_text(Flags().set("speculation", False, "search").to_text())
    return tmp_path


def test_the_exporter_fills_exactly_its_catalogue(spec: PipelineSpec, published: Path) -> None:
    scraped = export(spec, lambda: parse(HISTOGRAMS), published)
    assert {sample.name for sample in scraped.samples} == {m.name.removesuffix("_total") for m in EXPORTER_CATALOGUE}
    labels = {m.name.removesuffix("_total"): {"model", *m.labels} for m in EXPORTER_CATALOGUE}
    assert all(set(sample.labels) == labels[sample.name] for sample in scraped.samples)


def test_objectives_are_compared_with_the_percentile(spec: PipelineSpec, published: Path) -> None:
    scraped = export(spec, lambda: parse(HISTOGRAMS), published)
    assert scraped.total("tandem_slo_p95_seconds", slo="inter_token_p95") == pytest.approx(0.095)
    assert scraped.total("tandem_slo_met", slo="inter_token_p95") == 0  # 60 ms
    assert scraped.total("tandem_slo_met", slo="ttft_p95") == 1  # 500 ms
    assert scraped.total("tandem_slo_slow_observations", slo="inter_token_p95") == pytest.approx(4)


def test_a_server_that_does_not_answer_is_down_and_the_rest_is_still_exported(spec: PipelineSpec, published: Path) -> None:
    def refuse() -> Scrape:
        raise ServeError("nobody there")

    scraped = export(spec, refuse, published)
    assert [sample.value for sample in scraped.series("tandem_triton_up")] == [0]
    assert scraped.series("tandem_slo_p95_seconds") == scraped.series("tandem_gpu") == []
    assert scraped.total("tandem_price_per_million_tokens", token_type="output", currency="USD") == 0.4
    assert scraped.series("tandem_pipeline_info", owner="team@example.com")


def test_without_a_gpu_it_says_absent(spec: PipelineSpec, published: Path) -> None:
    assert [s.labels["state"] for s in export(spec, lambda: parse(HISTOGRAMS), published).series("tandem_gpu")] == ["absent"]
    gpu = HISTOGRAMS + '# TYPE nv_gpu_utilization gauge\nnv_gpu_utilization{gpu_uuid="x"} 0.5\n'
    assert [s.labels["state"] for s in export(spec, lambda: parse(gpu), published).series("tandem_gpu")] == ["present"]


def test_nothing_published_and_nothing_observed_export_no_zeros(spec: PipelineSpec, tmp_path: Path) -> None:
    scraped = export(spec, lambda: parse(""), tmp_path)
    for name in ("tandem_newest_version", "tandem_quality_result", "tandem_slo_p95_seconds", "tandem_slo_met"):
        assert scraped.series(name) == []


def test_results_are_named_by_their_place_and_lists_left_out() -> None:
    assert list(numbers(RESULTS)) == [("acceptance.rate", 0.8), ("identical", 1.0)]
