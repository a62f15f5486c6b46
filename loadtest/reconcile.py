"""`python -m loadtest.reconcile`: do ledger, counters and clients count the same, to the token?"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.console import err, out, print_error, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline, Repository
from builder.errors import TandemError
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.spec.load import load_pipeline
from loadtest.agreement import Agreement, AgreementOptions, run_agreement


def reconcile(
    pipeline: Pipeline,
    requests: Annotated[int, typer.Option(min=1, help="At least so many.")] = 10_000,
    users: Annotated[int, typer.Option(min=1, max=1000, help="Users at once.")] = 16,
    workload: Annotated[str, typer.Option(help="Name or path of a workload without disconnects: who left knows no usage.")] = "reconcile",
    seed: Annotated[int, typer.Option(help="Draws the same requests again.")] = 0,
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Send texts as they are, or as chats.")] = False,
    json: Json = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Put a load with cancels and broken requests on a server of its own; exit 1 when two counts of it differ.

    Example: `python -m loadtest.reconcile pipelines/smollm2.yaml --requests 10000 --json`
    """
    loaded = load_pipeline(pipeline)
    options = AgreementOptions(requests, users, workload, seed, raw)
    with tempfile.TemporaryDirectory(prefix="tandem-reconcile-") as name, err.status("reconcile") as status:
        tell = status.update if err.is_terminal else err.print
        folder, ports = Path(name), free_ports()
        with (folder / "server.log").open("w", encoding="utf-8") as log, Triton(repository, loaded.spec.metadata.name, ports, log=log):
            made = run_agreement(loaded, repository, ports, options, folder, tell)
    if json:
        print_json(made.to_json())
    else:
        _show(made)
    if not made.passed:
        raise typer.Exit(1)


def _show(made: Agreement) -> None:
    counts = made.to_json()["counts"]
    out.print(", ".join(f"{name} {number}" for name, number in counts.items()))
    for check in (made.with_counters, made.with_clients):
        verdict = "[green]agree[/]" if check.agrees else f"[bold red]{len(check.differences)} differ[/]"
        out.print(f"ledger and {check.other}: {check.compared} counts, {verdict}")
        for difference in check.differences:
            out.print(f"  {difference.what}: ledger {difference.ledger}, {check.other} {difference.other}", markup=False)


def main() -> None:
    try:
        typer.run(reconcile)
    except TandemError as error:
        print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
