"""`builder chargeback`: who used what, made how, at what price."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from builder.chargeback.focus import to_focus
from builder.chargeback.place import ledger_folder
from builder.chargeback.reconcile import Reconciliation, read_client_counts, with_clients, with_counters
from builder.chargeback.report import Report, make_report
from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Repository
from builder.spec.load import load_pipeline
from builder.telemetry.scrape import scrape

SETTLE_TRIES, SETTLE_PERIOD = 8, 0.5  # metrics are flushed four times a second; a request may end between two readings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Reports over the usage ledger: tokens and costs by tenant, day and optimisation.",
    epilog="Example: `builder chargeback report pipelines/smollm2.yaml --from 2026-01-01 --to 2026-01-31 --format focus`",
)


@app.callback()
def chargeback() -> None:
    """Keeps `report` a command of its own."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    FOCUS = "focus"


def _today() -> datetime:
    return datetime.now(UTC)


@app.command("report")
def report(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml; its prices are used.")],
    first: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="First UTC day; unless given, the first of this month.")
    ] = None,
    last: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last UTC day, included; unless given, today.")
    ] = None,
    format: Annotated[Format, typer.Option(help="table, json, csv, or focus: CSV for FinOps tools.")] = Format.TABLE,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    metrics_url: Annotated[
        str | None, typer.Option(help="Compare with the counters of a running server, such as http://127.0.0.1:8002/metrics.")
    ] = None,
    client: Annotated[Path | None, typer.Option(help="Compare with a load test's own count (JSON; see docs/chargeback.md).")] = None,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Sum up the usage ledger. Exit code 1: records are missing, or a count that it was compared with differs.

    Example: `builder chargeback report pipelines/smollm2.yaml --from 2026-01-01 --to 2026-01-31 --format csv`
    """
    spec = load_pipeline(pipeline).spec
    folder = ledger_folder(repository, spec.metadata.name, spec.chargeback)
    days = (first or _today().replace(day=1), last or _today())
    if days[0].date() > days[1].date():
        raise typer.BadParameter("--from is after --to")
    made = make_report(spec, folder, *(day.date().isoformat() for day in days))
    checks = []
    if metrics_url is not None:
        checks.append(_settled(folder, metrics_url, spec.metadata.name))
    if client is not None:
        checks.append(with_clients(folder, read_client_counts(client)))
    _print(made, checks, Format.JSON if json else format)
    if not made.integrity.whole or not all(check.agrees for check in checks):
        raise typer.Exit(1)


def _settled(folder: Path, url: str, pipeline: str) -> Reconciliation:
    """Compare until both agree: while requests end, counters and ledger are read at different moments."""
    for _ in range(SETTLE_TRIES):
        check = with_counters(folder, scrape(url), pipeline)
        if check.agrees:
            break
        time.sleep(SETTLE_PERIOD)
    return check


def _print(made: Report, checks: list[Reconciliation], format: Format) -> None:
    if format is Format.JSON:
        print_json({**made.to_json(), "reconciliation": [check.to_json() for check in checks]})
        return
    if format is Format.TABLE:
        out.print(_table(made))
    else:
        out.file.write(made.to_csv() if format is Format.CSV else to_focus(made))
    _print_checks(made, checks)


def _print_checks(made: Report, checks: list[Reconciliation]) -> None:
    """On stderr: stdout is the report."""
    found = made.integrity
    err.print(f"Ledger: {found.records} records in {found.segments} segments, {found.damaged_lines} damaged lines.")
    if not found.whole:
        gaps = f"{found.missing_records} records missing, {found.repeated_records} repeated, segments missing: "
        err.print(f"[bold red]Not whole:[/] {gaps}{', '.join(found.missing_segments) or 'none'}.")
    for check in checks:
        verdict = "agree" if check.agrees else f"[bold red]{len(check.differences)} differ[/]"
        err.print(f"Ledger and {check.other}: {check.compared} counts compared, {verdict}.")
        for difference in check.differences:
            err.print(f"  {escape(difference.what)}: ledger {difference.ledger}, {check.other} {difference.other}")


def _table(made: Report) -> Table:
    title = f"{made.pipeline}, {made.first_day} to {made.last_day} (UTC), {made.currency}"
    table = Table("day", "tenant", "optimisation", title=escape(title), box=None, pad_edge=False)
    columns = ("requests", "input", "cached", "output", "rejected drafts", "passes avoided", "compute s", "cost")
    for column in columns:
        table.add_column(column, justify="right")
    figures = made.to_json()
    for row in (*figures["rows"], {"day": "total", "tenant": "", "optimisation": "", **figures["total"]}):
        counts = (row[name] for name in ("requests", "input", "cached_input", "output", "draft_rejected"))
        avoided = f"{row['target_passes_avoided']} ({row['passes_avoided_share']:.0%})"
        names = (escape(row[name]) for name in ("day", "tenant", "optimisation"))
        table.add_row(*names, *map(str, counts), avoided, f"{row['compute_seconds']:.1f}", row["cost"]["total"])
    return table
