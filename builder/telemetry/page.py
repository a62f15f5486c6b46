"""docs/metrics.md, made of the catalogues: `python -m builder.telemetry.page docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.telemetry.catalogue import CATALOGUE, COMMON_LABELS, Metric
from builder.telemetry.exporter_catalogue import EXPORTER_CATALOGUE
from builder.telemetry.panels import DASHBOARDS

HEAD = """\
# Metrics

Made by `make docs` from `builder/telemetry/`; a test fails when it is stale. Change the catalogue, not this page.

    curl -s http://127.0.0.1:8002/metrics                  # Triton's port: serving.metrics_port
    builder exporter pipelines/smollm2.yaml --port 8003    # what Triton's port cannot give
    builder exporter pipelines/smollm2.yaml --once         # the same, printed once
    builder top pipelines/smollm2.yaml                     # a live view of both in the terminal
    make stack                                             # server, exporter and Prometheus with these rules, until Ctrl-C

Counters and histograms only: a rate, a ratio or a percentile is taken by the reader, over the window it wants
(`ops/prometheus/recording.yml` has the usual ones). Buckets are those of OpenTelemetry's semantic conventions for generative AI, in
seconds; a percentile read from a histogram is right within one bucket. What the decode loop reports is added up there and handed to
Triton four times a second.
"""
EXPORTER = """\
## On the exporter's port

Every series has the label `model`, the pipeline's name. What cannot be read has no series: without a GPU, `tandem_gpu` says absent, and
no use of 0 % is claimed.

"""
DASHBOARD = """\
## Dashboards

`ops/grafana/*.json`, made by `make docs` too. Import them into Grafana; they ask for the Prometheus to read from.
"""
RULES = """\
## Rules, alerts and routing

    promtool check config ops/prometheus/prometheus.yml
    promtool test rules ops/prometheus/tests/*.yml
    amtool check-config ops/alertmanager/alertmanager.yml

`ops/prometheus/prometheus.yml` scrapes both ports of a server on the same machine and loads `recording.yml` and `alerts.yml`. Each alert
carries `severity` (page or ticket), a runbook below `ops/runbooks/`, and the `owner` of its pipeline: the exporter exports
`metadata.owner`, a recording rule keeps it for a day should the exporter fail, and Alertmanager mails it. Latency alerts use two windows
of the burn rate, the share of observations above the objective over the 5 % that a p95 allows. An objective between two bucket bounds is
interpolated. The tests fire every alert and check each kind of recording rule with promtool. They also start `builder stack`, put a
load on it, and have its Prometheus answer every query of the dashboards and record every rule (`tests/integration/test_stack.py`).
Grafana itself was never run.

`make stack`, which is `builder stack` after a build, starts all of it on one machine: this configuration with the pipeline's own ports,
a scrape every 5 s, and without Alertmanager. Prometheus's data live as long as the stack.
"""


def page() -> str:
    sections = [
        HEAD,
        "## On Triton's port\n\n" + f"Every series has the labels {_code(COMMON_LABELS)}.\n\n" + _table(CATALOGUE),
        EXPORTER + _table(EXPORTER_CATALOGUE),
        RULES,
        "\n".join(_dashboards()),
    ]
    return "\n".join(sections)


def _table(metrics: Iterable[Metric]) -> str:
    rows = [f"| `{m.name}` | {m.kind} | {_code(m.labels)} | {m.help} |" for m in metrics]
    buckets = [f"`{m.name}`: {', '.join(f'{bound:g}' for bound in m.buckets)}\n" for m in metrics if m.buckets]
    head = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""] + (["Buckets:\n", *buckets] if buckets else []))


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _dashboards() -> Iterator[str]:
    yield DASHBOARD
    for title, panels in DASHBOARDS.items():
        yield f"### {title}\n"
        yield from (f"- **{panel.title}.** {panel.text}" for panel in panels)
        yield ""


def main() -> None:
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
