"""`builder front`: HAProxy before a pipeline's servers, which a canary needs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from builder.cli.console import err
from builder.cli.options import DEFAULT_REPOSITORY, Pipeline, Repository
from builder.cli.signals import end_as_by_ctrl_c
from builder.errors import ServeError
from builder.serve.front import Front
from builder.serve.servers import running_servers
from builder.spec.load import load_pipeline


def front(
    pipeline: Pipeline,
    http_port: Annotated[int, typer.Option(help="Port that clients use for HTTP.", min=1, max=65535)] = 8080,
    grpc_port: Annotated[int, typer.Option(help="Port that clients use for gRPC.", min=1, max=65535)] = 8081,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Run HAProxy before the servers that run on the repository, until Ctrl-C. `builder promote --canary` gives a version a share of what
    comes through it; before and after, everything goes to the live version.

    Example: `builder front pipelines/smollm2.yaml --http-port 8080 --grpc-port 8081`
    """
    name = load_pipeline(pipeline).spec.metadata.name
    end_as_by_ctrl_c()
    servers = running_servers(repository, name)
    with Front(repository, name, servers, {"http": http_port, "grpc": grpc_port}, host=host) as running:
        err.print(f"{escape(name)}: HTTP {host}:{http_port}, gRPC {host}:{grpc_port}, before {', '.join(s.name for s in servers)}")
        try:
            status = running.wait()
        except KeyboardInterrupt:
            err.print("Stopping; running requests may finish.")
            return
    raise ServeError(f"haproxy ended with status {status}", mend="Start `builder front` again")
