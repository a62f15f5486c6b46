"""`python -m loadtest.soak`: load with cancels, broken requests and killed clients, and whether the server comes out of it whole."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.console import err, out, print_error, print_json
from builder.errors import TandemError
from builder.spec.load import load_pipeline

REPORTS = Path("reports")


def soak(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml; build it first.")],
    minutes: Annotated[
        float,
        typer.Option(
            min=0.1, max=10_000, help="Length, a first warm-up of a tenth included; more warm-ups, until the KV pool is full, come on top."
        ),
    ] = 20.0,
    users: Annotated[int, typer.Option(min=1, max=1000, help="Users at once.")] = 8,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How often the client process is killed.")] = 2,
    workload: Annotated[str, typer.Option(help="Name or path of a greedy workload without conversations.")] = "soak",
    checked: Annotated[float, typer.Option(min=0, max=1, help="Share of the answers that are asked again, alone.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Draws the same requests again.")] = 0,
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Send texts as they are, or as chats.")] = False,
    report: Annotated[Path | None, typer.Option(help="Folder for samples and logs.", show_default="reports/soak-NAME-TIME")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
) -> None:
    """Soak a server of its own; exit 1 when blocks, memory or an answer went wrong.

    Example: `python -m loadtest.soak pipelines/smollm2.yaml --minutes 20 --json`
    """
    loaded = load_pipeline(pipeline)
    from loadtest.endurance import SoakOptions, run_soak

    options = SoakOptions(workload, users, minutes, kills, checked, seed, raw)
    folder = report or REPORTS / f"soak-{loaded.spec.metadata.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    made = run_soak(loaded, repository, options, folder, err.print)
    if json:
        print_json({"pipeline": loaded.spec.metadata.name, "minutes": minutes, "users": users, **made.to_json()})
    else:
        for finding in made.findings:
            mark = "[green]ok[/]" if finding.passed else "[bold red]no[/]"
            out.print(f"{mark} {finding.name}: {finding.detail}")
    if not made.passed:
        raise typer.Exit(1)


def main() -> None:
    try:
        typer.run(soak)
    except TandemError as error:
        print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
