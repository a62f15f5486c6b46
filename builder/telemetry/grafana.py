"""Grafana dashboards as code: `python -m builder.telemetry.grafana ops/grafana` writes one JSON file each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from builder.telemetry import exporter_catalogue
from builder.telemetry.panels import DASHBOARDS, Panel

WIDTH, HEIGHT = 12, 8  # two panels beside each other in Grafana's grid of 24
SOURCE = {"type": "prometheus", "uid": "${source}"}


def file_name(title: str) -> str:
    return title.lower().replace(": ", "-") + ".json"


def dashboard(title: str, panels: Iterable[Panel]) -> dict[str, Any]:
    return {
        "title": title,
        "uid": file_name(title).removesuffix(".json"),
        "tags": ["tandem"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _variables() -> list[dict[str, Any]]:
    query = f"label_values({exporter_catalogue.PIPELINE_INFO.name}, model)"
    model = {"name": "model", "label": "pipeline", "type": "query", "datasource": SOURCE, "query": query, "refresh": 2}
    everything = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}, model | everything]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for place, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def texts() -> dict[str, str]:
    """File contents by name."""
    return {file_name(title): json.dumps(dashboard(title, panels), indent=2) + "\n" for title, panels in DASHBOARDS.items()}


def main() -> None:
    for name, text in texts().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
