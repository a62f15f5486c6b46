"""`builder stack` with the tiny model: a real Prometheus scrapes a real server and exporter, and answers every query of ops/."""

from __future__ import annotations

import http.client
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from builder.serve import client
from builder.serve.ports import free_ports, require_free
from builder.serve.processes import server_processes
from builder.telemetry.scrape import parse, scrape
from tests.integration.conftest import tiny_spec

OPS = Path(__file__).parents[2] / "ops"
BUILDER = [sys.executable, "-c", "from builder.cli.main import main; main()"]
START_SECONDS = 120


def rules(file: str) -> dict[str, str]:
    """Expressions by name."""
    groups = yaml.safe_load((OPS / "prometheus" / file).read_text())["groups"]
    return {rule.get("record") or rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> dict[str, str]:
    """Queries by the name of their panel, as Grafana asks them for all pipelines."""
    dashboards = [json.loads(file.read_text()) for file in sorted((OPS / "grafana").glob("*.json"))]
    return {
        f"{dashboard['title']}/{panel['title']}/{target['refId']}": target["expr"].replace("$model", ".*")
        for dashboard in dashboards
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


@dataclass(frozen=True)
class Stack:
    pipeline: Path
    repository: Path
    ports: dict[str, int]
    process: subprocess.Popen[bytes]

    def ask(self, path: str) -> Any:
        """`data` of an answer of Prometheus's HTTP interface."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["prometheus"], timeout=10)
        connection.request("GET", f"/api/v1/{path}")
        answer = json.loads(connection.getresponse().read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expression: str) -> list[float]:
        return [float(series["value"][1]) for series in self.ask(f"query?query={quote(expression)}")["result"]]

    def builder(self, *arguments: str) -> str:
        ran = subprocess.run([*BUILDER, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.values(expression):
                    return
            except (OSError, ValueError):  # it answers in plain text while it starts
                assert self.process.poll() is None, "the stack ended"
            assert time.monotonic() < deadline, expression
            time.sleep(0.2)

    def load(self) -> None:
        """Three tenants, plain and speculative."""
        for number in range(6):
            asked = {"max_tokens": 40, "tenant": ("search", "support", "x")[number % 3], "speculation": ("on", "off")[number // 3]}
            url = f"127.0.0.1:{self.ports['grpc']}"
            list(client.generate(url, "tiny", prompt="the cat sat", parameters={**asked, "ignore_eos": True}))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, built_repository: Path, tiny_weights: Path) -> Iterator[Stack]:
    """Started, and scraped before, between and after two parts of a load."""
    folder, more = tmp_path_factory.mktemp("stack"), free_ports()
    ports = free_ports() | {"exporter": more["http"], "prometheus": more["grpc"]}
    serving = {f"{name}_port": ports[name] for name in ("http", "grpc", "metrics")}
    chargeback = {"tenants": ["search", "support"], "per_million_tokens": {"input": 0.1, "output": 0.4}}
    pipeline = folder / "tiny.yaml"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights, serving=serving, chargeback=chargeback).model_dump(mode="json")))
    command = [*BUILDER, "stack", str(pipeline), "--repository", str(built_repository), "--rules", str(OPS / "prometheus")]
    command += ["--exporter-port", str(ports["exporter"]), "--prometheus-port", str(ports["prometheus"]), "--interval", "1s"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        found = Stack(pipeline, built_repository, ports, process)
        try:
            found.wait_for('sum(up{job=~"tandem.*"}) == 2')
            for answered in (240, 480):  # output tokens of each part and those before
                found.load()
                found.wait_for(f'sum(tandem_tokens{{token_type="output"}}) == {answered}')
            found.wait_for("model:tandem_acceptance_rate:5m > 0 and on (model) model:tandem_cost_per_1000_output_tokens:5m > 0")
            yield found
        finally:
            process.kill()


@pytest.mark.parametrize("name", panels())
def test_every_query_of_the_dashboards_has_an_answer(stack: Stack, name: str) -> None:
    values = stack.values(panels()[name])
    assert values
    assert all(math.isfinite(value) for value in values)


@pytest.mark.parametrize("name", rules("recording.yml"))
def test_every_recording_rule_has_recorded(stack: Stack, name: str) -> None:
    values = stack.values(name)
    if name != "model:tandem_errors:ratio5m":  # nothing has failed, so there is no series of failures
        assert values
    assert all(math.isfinite(value) for value in values)


def test_no_rule_fails_and_no_alert_fires_on_a_server_that_is_well(stack: Stack) -> None:
    found = {rule["name"]: rule for group in stack.ask("rules")["groups"] for rule in group["rules"]}
    assert found.keys() == {*rules("recording.yml"), *rules("alerts.yml")}
    assert {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"} == {}
    assert [alert["labels"]["alertname"] for alert in stack.ask("alerts")["alerts"] if alert["state"] == "firing"] == []


def test_the_dashboards_list_of_pipelines_is_that_of_the_exporters(stack: Stack) -> None:
    assert stack.ask(f"label/model/values?match[]={quote('tandem_pipeline_info')}") == ["tiny"]


def test_figures_in_prometheus_are_those_of_the_load(stack: Stack) -> None:
    assert stack.values('sum by (tenant) (tandem_tokens{token_type="output"})') == [160.0] * 3
    assert stack.values("sum(tandem_finished_requests)") == [12.0]
    assert stack.values("sum(tandem_e2e_request_latency_seconds_count)") == [12.0]
    (rate,) = stack.values("model:tandem_acceptance_rate:5m")
    assert 0 < rate <= 1


def test_the_exporter_reads_a_real_server(stack: Stack) -> None:
    scraped = parse(stack.builder("exporter", str(stack.pipeline), "--repository", str(stack.repository), "--once"))
    assert scraped.total("tandem_triton_up") == 1
    assert {sample.labels["slo"] for sample in scraped.series("tandem_slo_p95_seconds")} == {"ttft_p95", "inter_token_p95", "e2e_p95"}
    assert scraped.total("tandem_slo_observations", slo="e2e_p95") == 12
    processes = {sample.labels["process"]: sample.value for sample in scraped.series("tandem_process_cpu_seconds")}
    assert {"tritonserver", "tiny_tokenize", "tiny_decode", "tiny_detokenize"} <= processes.keys()
    assert processes["tiny_decode"] > 0
    assert scraped.total("tandem_process_resident_bytes", process="tiny_decode") > 1 << 20
    assert scraped.total("tandem_newest_version") == 1
    assert scraped.series("tandem_pipeline_info", owner="tests")
    served = scrape(f"http://127.0.0.1:{stack.ports['exporter']}/metrics")
    assert {sample.name for sample in served.samples} == {sample.name for sample in scraped.samples}


def test_builder_top_shows_what_a_real_server_does(stack: Stack) -> None:
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(stack.builder, "top", str(stack.pipeline), "--interval", "6", "--json")
        while not looking.done():
            stack.load()
    seen = json.loads(looking.result())
    assert 0 < seen["acceptance_rate"] <= 1
    assert seen["acceptance_length"] == pytest.approx(1 + sum(seen["accepted_by_position"]), rel=0.01)
    assert all(seen["output_tokens"][tenant] > 0 for tenant in ("search", "support", "other"))
    assert all(seen["p95"][key] > 0 for key in ("ttft_p95", "inter_token_p95", "e2e_p95"))
    assert seen["kv_blocks"]["free"] > 0
    assert "acceptance rate" in stack.builder("top", str(stack.pipeline), "--interval", "0.5", "--once")


def test_one_ctrl_c_ends_all(stack: Stack) -> None:
    assert server_processes(stack.ports["metrics"])
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(timeout=60) == 0
    require_free("127.0.0.1", stack.ports)
    assert server_processes(stack.ports["metrics"]) == []
