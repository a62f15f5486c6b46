"""`builder loadtest`: users over HTTP and gRPC, what they wait for, and whether that keeps the promises of `slo`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Repository
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # reports import matplotlib: time that --help must not pay
    from loadtest.report import Report

REPORTS = Path("reports")


def loadtest(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml; build it first.")],
    workload: Annotated[str, typer.Option(help="Name of a workload in loadtest/workloads, or the path of one.")] = "chat",
    users: Annotated[int, typer.Option(min=1, max=10_000, help="Users at once; of an open workload, they share its arrivals.")] = 8,
    minutes: Annotated[float, typer.Option(min=0.01, max=10_000, help="Length without the warm-up.")] = 2.0,
    ab: Annotated[bool, typer.Option("--ab", help="Alternate blocks of plain and of speculative decoding.")] = False,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second of an open workload, instead of its own.")] = None,
    url: Annotated[str | None, typer.Option(help="HTTP host:port of a running server; without it one is started.")] = None,
    grpc_url: Annotated[str | None, typer.Option(help="Its gRPC host:port.", show_default="the port after that of --url")] = None,
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Send texts as they are, or as chats.")] = False,
    workers: Annotated[int, typer.Option(min=0, max=256, help="Worker processes of Locust; 0 runs all users in one.")] = 0,
    seed: Annotated[int, typer.Option(help="Draws the same requests again.")] = 0,
    metrics_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Prometheus metrics of the clients while they run.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.html, report.json and clients.json.", show_default="reports/loadtest-NAME-TIME")
    ] = None,
    json: Json = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Put users on a pipeline and check its latencies against `slo`; exit 1 when one is broken.

    Example: `builder loadtest pipelines/smollm2.yaml --workload mixed --users 8 --minutes 2 --ab`
    """
    loaded = load_pipeline(pipeline)
    from loadtest.files import write_report
    from loadtest.session import Options, run_loadtest

    options = Options(workload, users, minutes, ab, rate, workers, metrics_port, seed, raw, url, grpc_url)
    folder = report or REPORTS / f"loadtest-{loaded.spec.metadata.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    with err.status("load test") as status:  # shows nothing where stderr is no terminal: there each step is a line
        made = run_loadtest(loaded, repository, options, folder, status.update if err.is_terminal else err.print)
        page = write_report(made, folder)
    if json:
        print_json(made.to_json())
    else:
        _show(made)
    err.print(f"Report: {page}", markup=False, soft_wrap=True)
    if not made.passed:
        raise typer.Exit(1)


def _show(made: Report) -> None:
    from loadtest.tables import NOTE, check_rows, measure_rows, server_rows

    table = Table("", *made.arms, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in measure_rows(made):
        table.add_row(*row)
    out.print(table)
    out.print(NOTE, "", sep="\n", style="dim")
    if made.ratio is not None:
        out.print(f"Speculative decoding gave {made.ratio:.2f}x the tokens per second of plain decoding, median over pairs of blocks.")
    for verdict, name, measured, limit in check_rows(made):
        out.print(f"[{'green' if verdict == 'kept' else 'bold red'}]{verdict}[/] {name}: {measured}, promised {limit}")
    for name, client, server, verdict in server_rows(made):
        out.print(f"{name} of all clients {client}, in the server's histograms {server}: {verdict}")
    for text, number in made.errors().items():
        out.print(f"{number} times: {text}", markup=False)
