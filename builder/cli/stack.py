"""`builder stack`: a pipeline's server and all that watches it, on this machine."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.console import err
from builder.cli.exporter import DEFAULT_PORT
from builder.cli.options import DEFAULT_REPOSITORY, Pipeline, Repository
from builder.cli.signals import end_as_by_ctrl_c
from builder.errors import ServeError
from builder.serve.exporter import exporting
from builder.serve.prometheus import LOG, prometheus
from builder.serve.triton import Triton
from builder.spec.addresses import reachable
from builder.spec.load import load_pipeline
from builder.spec.pipeline import PipelineSpec

POLL_SECONDS = 0.5
SERVER_LOG = "server.log"


def stack(
    pipeline: Pipeline,
    repository: Repository = DEFAULT_REPOSITORY,
    exporter_port: Annotated[int, typer.Option(help="Port of the exporter.", min=1, max=65535)] = DEFAULT_PORT,
    prometheus_port: Annotated[int, typer.Option(help="Port of Prometheus.", min=1, max=65535)] = 9090,
    interval: Annotated[str, typer.Option(help="Time between two scrapes, in Prometheus's form.")] = "5s",
    rules: Annotated[Path, typer.Option(help="Folder with prometheus.yml and its rules.")] = Path("ops/prometheus"),
) -> None:
    """Start server, exporter and Prometheus with this project's rules; Ctrl-C stops all of them.

    All listen on this machine only, but for the server where `serving.host` says otherwise. Prometheus keeps its data until the end.

    Example: `builder stack pipelines/smollm2.yaml`
    """
    spec = load_pipeline(pipeline).spec
    serving = spec.serving
    end_as_by_ctrl_c()
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="tandem-stack-")))
        log = parts.enter_context((folder / SERVER_LOG).open("w", encoding="utf-8"))
        server = Triton(repository, spec.metadata.name, serving.ports, host=serving.host, log=log)
        targets = {"tandem": serving.metrics_port, "tandem-exporter": exporter_port}
        try:
            with err.status("Starting server, exporter and Prometheus"):
                parts.enter_context(server)
                parts.enter_context(exporting(spec, repository, "127.0.0.1", exporter_port))
                watcher = parts.enter_context(prometheus(rules, folder, prometheus_port, targets, interval))
            _show(spec, exporter_port, prometheus_port, folder)
            while server.running and watcher.poll() is None:
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            err.print("Stopping all; running requests may finish.")
            return
        ended = "prometheus" if server.running else "tritonserver"
        raise ServeError(f"{ended} ended by itself", mend=f"The last lines of its log:\n{_last_lines(folder, ended)}")


def _show(spec: PipelineSpec, exporter_port: int, prometheus_port: int, folder: Path) -> None:
    host = reachable(spec.serving.host)
    err.print(f"HTTP        http://{host}:{spec.serving.http_port}/v2/models/{spec.metadata.name}/generate", markup=False, soft_wrap=True)
    err.print(f"gRPC        {host}:{spec.serving.grpc_port}", markup=False)
    err.print(f"metrics     http://{host}:{spec.serving.metrics_port}/metrics", markup=False)
    err.print(f"exporter    http://127.0.0.1:{exporter_port}/metrics", markup=False)
    err.print(f"Prometheus  http://127.0.0.1:{prometheus_port}/graph (alerts: /alerts, rules: /rules)", markup=False)
    err.print(f"Logs are in {folder}. Ctrl-C stops all.", markup=False, soft_wrap=True)


def _last_lines(folder: Path, ended: str) -> str:
    file = folder / (LOG if ended == "prometheus" else SERVER_LOG)
    return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
