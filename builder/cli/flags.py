"""`builder flags`: what running servers may do, switched without a restart."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline
from builder.errors import FlagError
from builder.repository.flag_history import Change
from builder.repository.flag_store import FlagStore
from builder.repository.flags import FLAGS, VALUES, WORDS, Flags
from builder.repository.versions import newest
from builder.spec.chargeback import OTHER_TENANT
from builder.spec.load import load_pipeline
from builder.spec.pipeline import PipelineSpec

Repository = Annotated[Path, typer.Option(help="Folder of the model repository that the servers mount.")]
Tenant = Annotated[str | None, typer.Option(help="For this tenant only, one of chargeback.tenants or `other`.")]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Turn optimisations of running servers off and on: `speculation`, `prefix_cache`, or `all` of them (the kill switch).",
    epilog='Stop everything now: `builder flags set pipelines/smollm2.yaml all=off --reason "what you see"`',
)


@app.command("get")
def get_flags(pipeline: Pipeline, tenant: Tenant = None, repository: Repository = DEFAULT_REPOSITORY, json: Json = False) -> None:
    """Show which flags are in force, and why. For a tenant, or for the pipeline and every tenant that has its own.

    Example: `builder flags get pipelines/smollm2.yaml`
    """
    spec, store = _open(pipeline, repository, tenant)
    flags = store.read()
    if json:
        print_json({"pipeline": spec.metadata.name, "flags": _rows(flags, tenant)})
    else:
        _show(flags, tenant)


@app.command("set")
def set_flags(
    pipeline: Pipeline,
    assignments: Annotated[list[str], typer.Argument(help="FLAG=on|off|default, one or more.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
    tenant: Tenant = None,
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """Set flags. Servers that mount the repository follow within a second, running requests included.

    Example: `builder flags set pipelines/smollm2.yaml speculation=off --reason "acceptance fell" --tenant search`

    Example: `builder flags set pipelines/smollm2.yaml all=default speculation=on --reason "draft mended"`
    """
    spec, store = _open(pipeline, repository, tenant)
    values = _values(assignments)
    changes = store.set(values, reason, tenant)
    flags = store.read()
    if json:
        changed = [change.to_json() for change in changes]
        print_json({"pipeline": spec.metadata.name, "changed": changed, "flags": _rows(flags, tenant)})
    else:
        _show(flags, tenant)
    if not changes:
        err.print("Nothing to change: it was set so already.")
    elif not reason:
        err.print("No --reason was given: the history will not say why.")


@app.command("history")
def flag_history(pipeline: Pipeline, repository: Repository = DEFAULT_REPOSITORY, json: Json = False) -> None:
    """Show every change of the flags, the newest last: when (UTC), who, what, why.

    Example: `builder flags history pipelines/smollm2.yaml --json`
    """
    spec, store = _open(pipeline, repository)
    changes = store.history()
    if json:
        print_json({"pipeline": spec.metadata.name, "history": [change.to_json() for change in changes]})
    else:
        out.print(_history_table(changes))


def _open(pipeline: Path, repository: Path, tenant: str | None = None) -> tuple[PipelineSpec, FlagStore]:
    """RepositoryError for a repository that does not have the pipeline: no server would read flags there."""
    spec = load_pipeline(pipeline).spec
    tenants = (*spec.chargeback.tenants, OTHER_TENANT)
    if tenant is not None and tenant not in tenants:
        raise _unknown("tenant", tenant, tenants, where="--tenant")
    newest(repository, spec.metadata.name)
    return spec, FlagStore(repository, spec.metadata.name)


def _values(assignments: Sequence[str]) -> dict[str, bool | None]:
    values: dict[str, bool | None] = {}
    for assignment in assignments:
        flag, equals, value = assignment.partition("=")
        if not equals:
            raise FlagError("a flag is set as FLAG=on, FLAG=off or FLAG=default", where=assignment)
        if flag not in FLAGS:
            raise _unknown("flag", flag, FLAGS, where=assignment)
        if value not in VALUES:
            raise _unknown("value", value, tuple(VALUES), where=assignment)
        if values.setdefault(flag, VALUES[value]) is not VALUES[value]:
            raise FlagError(f"`{flag}` is set twice, to different values", where=assignment)
    return values


def _unknown(kind: str, name: str, known: Sequence[str], where: str) -> FlagError:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    mend = f"Did you mean `{near[0]}`" if near else f"Known are {', '.join(known)}"
    return FlagError(f"unknown {kind} `{name}`", where=where, mend=mend)


def _rows(flags: Flags, tenant: str | None) -> list[dict[str, str | bool | None]]:
    """What is set and what is in force, by tenant (None is the pipeline) and flag."""
    scopes: list[str | None] = [None, *sorted(flags.tenants)] if tenant is None else [tenant]
    rows: list[dict[str, str | bool | None]] = []
    for scope in scopes:
        for flag in FLAGS:
            on, why = flags.in_force(flag, scope)
            rows.append({"tenant": scope, "flag": flag, "set": WORDS[flags.get(flag, scope)], "on": on, "why": why})
    return rows


def _show(flags: Flags, tenant: str | None) -> None:
    table = Table("tenant", "flag", "set", "in force", "why", box=None, pad_edge=False)
    for row in _rows(flags, tenant):
        in_force = "[green]on[/]" if row["on"] else "[bold red]off[/]"
        cells = [escape(str(value)) for value in (row["tenant"] or "(pipeline)", row["flag"], row["set"], row["why"])]
        table.add_row(*cells[:3], in_force, cells[3])
    out.print(table)


def _history_table(changes: Iterable[Change]) -> Table:
    table = Table("when", "who", "tenant", "flag", "old", "new", box=None, pad_edge=False)
    table.add_column("why", overflow="fold")
    for change in changes:
        cells = (change.when, change.who, change.tenant or "(pipeline)", change.flag, change.old, change.new, change.why)
        table.add_row(*map(escape, cells))
    return table
