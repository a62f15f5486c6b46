"""`builder verify`: does the published version answer as its target does?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Repository
from builder.cli.stages import show_stages
from builder.repository.live import serving_version
from builder.repository.versions import find_version
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # verifying loads engines and so imports torch: seconds that --help must not pay
    from builder.quality.report import Report

COLOURS = {"passed": "green", "failed": "bold red", "inconclusive": "bold yellow"}


def verify(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml; build it first.")],
    quick: Annotated[bool, typer.Option("--quick", help="A part of each suite and fewer samples: what `builder build` runs.")] = False,
    version: Annotated[int | None, typer.Option(help="Another version than the live one.")] = None,
    votes: Annotated[Path | None, typer.Option(help="Human preference: a CSV with the columns case,choice.")] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for report.html and report.json.", show_default="beside the version")] = None,
    json: Json = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Compare a version with plain decoding: token identity, sampled distributions, task success, drift. Exit 1 if a gate says no.

    The suites and limits are those of the file's `quality` section.

    Example: `builder verify pipelines/smollm2.yaml --quick --json`
    """
    loaded = load_pipeline(pipeline)
    from builder.quality.cases import load_suites
    from builder.quality.published import verify_version
    from builder.quality.votes import read_votes

    load_suites(loaded.spec.quality.suites, loaded.base)  # a wrong line is told before minutes of work
    counted = read_votes(votes) if votes else None
    name = loaded.spec.metadata.name
    wanted = find_version(repository, name, version) if version is not None else serving_version(repository, name)
    with show_stages() as progress:
        made, page = verify_version(wanted, loaded, quick=quick, votes=counted, folder=report, progress=progress)
    if json:
        print_json(made.to_json())
    else:
        show(made)
    err.print(f"Report: {page}", markup=False, soft_wrap=True)
    if not made.passed:
        raise typer.Exit(1)


def show(made: Report) -> None:
    table = Table("gate", "verdict", box=None, pad_edge=False)
    table.add_column("what was found", overflow="fold")
    for gate in made.gates:
        colour = COLOURS.get(gate.verdict, "dim")
        table.add_row(gate.name, f"[{colour}]{gate.verdict}[/]", escape(gate.says))
    out.print(table)
    out.print(f"Version {made.version} of {made.pipeline}, {made.form} form, {made.seconds:.0f} s: {made.verdict}.")
