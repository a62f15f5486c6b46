"""`builder exporter`: metrics that Triton's own port cannot give."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, generate_latest
from rich.markup import escape

from builder.cli.console import err
from builder.cli.options import DEFAULT_REPOSITORY, Repository
from builder.serve.exporter import PipelineCollector, exporting, reader
from builder.spec.addresses import reachable
from builder.spec.load import load_pipeline

DEFAULT_PORT = 8003


def exporter(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml whose server is watched.")],
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    repository: Repository = DEFAULT_REPOSITORY,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and end.")] = False,
) -> None:
    """Export SLO state, owner, prices, quality results, flags of tenants and process use, for Prometheus to scrape.

    The server is scraped at `serving.metrics_port` whenever the exporter is. Ctrl-C ends it.

    Example: `builder exporter pipelines/smollm2.yaml --port 8003`
    """
    spec = load_pipeline(pipeline).spec
    if once:
        registry = CollectorRegistry()
        registry.register(PipelineCollector(spec, repository, reader(reachable(spec.serving.host), spec.serving.metrics_port)))
        sys.stdout.write(generate_latest(registry).decode("utf-8"))
        return
    with exporting(spec, repository, host, port):
        err.print(f"Exporting {escape(spec.metadata.name)} on http://{host}:{port}/metrics", soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            err.print("Stopped.")
