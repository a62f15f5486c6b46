"""`builder serve`: Triton on the model repository, until it is told to stop."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from builder.cli.console import err
from builder.cli.options import DEFAULT_REPOSITORY, Repository
from builder.cli.signals import end_as_by_ctrl_c
from builder.errors import ServeError
from builder.repository.handed_over import require_served_here
from builder.repository.live import serving_version
from builder.serve.triton import Triton
from builder.spec.load import load_pipeline


def serve(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml to serve; build it first.")],
    repository: Repository = DEFAULT_REPOSITORY,
    host: Annotated[str | None, typer.Option(help="Address to listen on instead of serving.host.")] = None,
    triton_binary: Annotated[Path | None, typer.Option(help="A tritonserver to use instead of the installed one.")] = None,
    log: Annotated[Path | None, typer.Option(help="Append Triton's log to this file instead of stderr.")] = None,
) -> None:
    """Serve the live version of a pipeline with Triton; Ctrl-C or SIGTERM ends it, running requests first.

    Example: `builder serve pipelines/smollm2.yaml`
    """
    spec = load_pipeline(pipeline).spec
    require_served_here(repository, spec)
    name, address = spec.metadata.name, host or spec.serving.host
    end_as_by_ctrl_c()
    with ExitStack() as stack:
        sink = stack.enter_context(log.open("a", encoding="utf-8")) if log else sys.stderr
        server = Triton(repository, name, spec.serving.ports, host=address, binary=triton_binary, log=sink)
        try:
            with err.status(f"Starting Triton for {escape(name)}"):
                stack.enter_context(server)
            _show_endpoints(server, serving_version(repository, name).number)
            status = server.wait()
        except KeyboardInterrupt:
            err.print("Stopping; running requests may finish, Ctrl-C again ends them.")
            return
        raise ServeError(f"tritonserver ended by itself with status {status}", mend="Its log names the cause")


def _show_endpoints(server: Triton, version: int) -> None:
    host, ports = server.host, server.ports
    err.print(f"Serving {escape(server.pipeline)} version {version}.", markup=True)
    err.print(f"HTTP     http://{host}:{ports['http']}/v2/models/{server.pipeline}/generate", markup=False)
    err.print(f"gRPC     {host}:{ports['grpc']}", markup=False)
    err.print(f"metrics  http://{host}:{ports['metrics']}/metrics", markup=False)
