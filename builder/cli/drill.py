"""`builder drill`: tries what operators rely on, on a real server under live load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Repository
from builder.repository.live import serving_version
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # engines and servers: seconds that --help must not pay
    from builder.drills.timeline import DrillResult

Pipeline = Annotated[Path, typer.Argument(help="The pipeline.yaml; build it first.")]
Quick = Annotated[bool, typer.Option("--quick", help="A short form: fewer requests, shorter windows.")]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Try what operators rely on, on a real server under live load. Exit 1 if something does not hold.",
    epilog="Example: `builder drill kill-switch pipelines/smollm2.yaml --quick`",
)


@app.command("kill-switch")
def kill_switch(
    pipeline: Pipeline,
    quick: Quick = False,
    url: Annotated[str | None, typer.Option(help="gRPC host:port of a running server; its users feel the drill.")] = None,
    metrics_url: Annotated[str | None, typer.Option(help="Metrics host:port of that server.", show_default="port 8002 of --url")] = None,
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """Switch every optimisation off and on again under load: under 1 s to effect, no failed request of 1,000.

    Starts a server of its own with a copy of the live version, unless --url names a running one.

    Example: `builder drill kill-switch pipelines/smollm2.yaml --json`
    """
    name = load_pipeline(pipeline).spec.metadata.name
    version = serving_version(repository, name)
    from builder.drills.kill_switch import drill_kill_switch

    if url is not None and metrics_url is None:
        metrics_url = f"{url.rpartition(':')[0]}:8002"
    _finish(drill_kill_switch(version, quick=quick, url=url, metrics_url=metrics_url, say=_say), json)


@app.command("draft-drift")
def draft_drift(pipeline: Pipeline, quick: Quick = False, repository: Repository = DEFAULT_REPOSITORY, json: Json = False) -> None:
    """Swap in a draft with random weights under load: decoding falls back to plain, is as fast, and speculates again with the good draft.

    Starts a server of its own with a copy of the live version.

    Example: `builder drill draft-drift pipelines/smollm2.yaml --quick`
    """
    name = load_pipeline(pipeline).spec.metadata.name
    version = serving_version(repository, name)
    from builder.drills.draft_drift import drill_draft_drift

    _finish(drill_draft_drift(version, quick=quick, say=_say), json)


@app.command("rollback")
def rollback(pipeline: Pipeline, quick: Quick = False, repository: Repository = DEFAULT_REPOSITORY, json: Json = False) -> None:
    """Publish bad versions under load (one fails to load, one is slow, one answers wrong), detect them and take them back.

    Starts a server of its own with a copy of the live version.

    Example: `builder drill rollback pipelines/smollm2.yaml --json`
    """
    name = load_pipeline(pipeline).spec.metadata.name
    version = serving_version(repository, name)
    from builder.drills.rollback import drill_rollback

    _finish(drill_rollback(version, quick=quick, say=_say), json)


def _say(entry: str) -> None:
    err.print(entry, markup=False)


def _finish(result: DrillResult, json: bool) -> None:
    if json:
        print_json(result.to_json())
    else:
        for check in result.checks:
            mark = "[green]ok[/]" if check.passed else "[bold red]no[/]"
            out.print(f"{mark}  {escape(check.name)}: {escape(check.found)}")
    if not result.passed:
        raise typer.Exit(1)
