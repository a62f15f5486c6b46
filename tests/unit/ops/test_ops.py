"""Rules, alerts, routing and dashboards, checked by the tools that will read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.telemetry import grafana, page
from builder.telemetry.catalogue import CATALOGUE
from builder.telemetry.exporter_catalogue import EXPORTER_CATALOGUE

ROOT = Path(__file__).parents[3]
OPS = ROOT / "ops"
ALERTS = [rule for group in yaml.safe_load((OPS / "prometheus/alerts.yml").read_text())["groups"] for rule in group["rules"]]
RUNBOOKS = {"rollback", "kill-switch", "acceptance-fell", "p95-breach", "kv-memory", "draft-drift"}
RUNBOOKS |= {"engine-load", "gpu-driver", "chargeback-mismatch"}


def run(*command: str) -> str:
    result = subprocess.run(command, cwd=OPS, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    run("promtool", "check", "config", "prometheus/prometheus.yml")


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_rules_do_what_their_tests_say(name: str) -> None:
    run("promtool", "test", "rules", f"prometheus/tests/{name}.yml")


def test_alertmanager_accepts_its_configuration() -> None:
    run("amtool", "check-config", "alertmanager/alertmanager.yml")


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["owner=o@example.com", "severity=page"], "owner"),
        (["owner=o@example.com", "severity=ticket"], "owner"),
        (["severity=page"], "platform"),
    ],
)
def test_alerts_go_to_the_owner_and_without_one_to_the_platform_team(labels: list[str], receiver: str) -> None:
    routed = run("amtool", "config", "routes", "test", "--config.file=alertmanager/alertmanager.yml", *labels)
    assert routed.split() == [receiver]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_has_severity_summary_runbook_and_owner(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook"] in {f"ops/runbooks/{name}.md" for name in RUNBOOKS}
    assert "group_left (owner) model_owner:tandem_owner:info" in alert["expr"] or alert["alert"] == "TandemExporterDown"


def test_every_alert_is_fired_in_a_test() -> None:
    tested = (OPS / "prometheus/tests/alerts.yml").read_text()
    assert [alert["alert"] for alert in ALERTS if f'alertname="{alert["alert"]}"' not in tested] == []


@pytest.mark.parametrize("file", sorted(OPS.rglob("*.yml")) + sorted(OPS.rglob("*.json")), ids=lambda path: str(path.name))
def test_every_metric_that_is_asked_for_is_in_a_catalogue(file: Path) -> None:
    known = {metric.name for metric in (*CATALOGUE, *EXPORTER_CATALOGUE)}
    known |= {f"{metric.name}_{part}" for metric in CATALOGUE if metric.kind == "histogram" for part in ("bucket", "sum", "count")}
    asked = set(re.findall(r"(?<![\w:])tandem_\w+(?![\w:])", file.read_text()))
    assert asked - known == set()


def test_the_committed_dashboards_are_those_of_the_code() -> None:
    assert {path.name: path.read_text() for path in (OPS / "grafana").glob("*.json")} == grafana.texts(), "run `make docs`"


def test_the_page_of_metrics_is_that_of_the_catalogue() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page.page(), "run `make docs`"
