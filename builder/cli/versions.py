"""`builder versions` and `builder rollback`: what is published, what is live, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline
from builder.errors import RepositoryError
from builder.repository.live import live_version, previous_version
from builder.repository.rollback import roll_back
from builder.repository.version_bench import read_bench
from builder.repository.versions import Version
from builder.repository.versions import versions as complete_versions
from builder.serve.servers import named_server, running_servers
from builder.spec.load import load_pipeline

Repository = Annotated[Path, typer.Option(help="Folder of the model repository that the servers mount.")]
Servers = Annotated[
    list[str] | None, typer.Option("--server", help="HOST:PORT (HTTP) of a server that runs on another machine; may be repeated.")
]


def versions(
    pipeline: Pipeline,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its manifest; exit 1 if one differs.")] = False,
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """List the versions of a pipeline, the oldest first: when, what made of, what the quality gate said, which is live.

    Example: `builder versions pipelines/smollm2.yaml --verify`
    """
    name = load_pipeline(pipeline).spec.metadata.name
    live = live_version(repository, name)
    previous = previous_version(repository, name, live) if live else None
    states = {version.number: state for state, version in (("previous", previous), ("live", live)) if version}
    rows = [_row(version, states.get(version.number, ""), verify) for version in complete_versions(repository, name)]
    if json:
        print_json({"pipeline": name, "live": live.number if live else None, "versions": rows})
    else:
        out.print(_table(rows))
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


def rollback(
    pipeline: Pipeline,
    to: Annotated[int | None, typer.Option(help="This version.", show_default="the one that was live before")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
    server: Servers = None,
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """Make an earlier version live again, in the repository and in the servers that run on it. No restart, no failed request.

    Example: `builder rollback pipelines/smollm2.yaml --reason "answers are wrong"`

    Example: `builder rollback pipelines/smollm2.yaml --to 3`
    """
    name = load_pipeline(pipeline).spec.metadata.name
    servers = [*map(named_server, server or ()), *running_servers(repository, name)]
    done = roll_back(repository, name, to, servers, reason)
    if json:
        print_json(
            {
                "pipeline": name,
                "from": done.before,
                "to": done.after,
                "seconds": round(done.seconds, 3),
                "servers": list(done.servers),
                "unreachable": list(done.unreachable),
            }
        )
    else:
        where = f"in {', '.join(done.servers)}" if done.servers else "no server runs on this repository"
        out.print(f"Version {done.after} of {name} is live ({done.seconds:.1f} s; {where}); version {done.before} was.")
    for address in done.unreachable:
        err.print(f"{address} could not be reached: it takes version {done.after} when it starts again.", markup=False)


def _row(version: Version, state: str, verify: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"version": version.number, "state": state, "problem": None}
    try:
        manifest = version.manifest
        if verify:
            manifest.check(version.folders)
    except RepositoryError as error:
        return row | {"problem": error.paragraph()}
    quality = manifest.results.get("quality") or {}
    return row | {
        "created": manifest.created,
        "fingerprint": manifest.fingerprint,
        "quality": quality.get("verdict", "unknown"),
        "gates": {gate["name"]: gate["verdict"] for gate in quality.get("gates", ())},
        "verified": verify,
        "bench": read_bench(version),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("version", "created", "fingerprint", "quality", "speed-up", "", box=None, pad_edge=False)
    table.add_column("problem", overflow="fold")
    for row in rows:
        state = f"[bold green]{row['state']}[/]" if row["state"] == "live" else row["state"]
        fingerprint = str(row.get("fingerprint", ""))[:12]
        made = (str(row["version"]), row.get("created", ""), fingerprint, row.get("quality", ""), _speedup(row.get("bench")))
        table.add_row(*made, state, escape(row["problem"] or ""))
    return table


def _speedup(bench: dict[str, Any] | None) -> str:
    """Of the method that gained most when the version was measured."""
    found = [float(setting["speedup"]) for setting in (bench or {}).get("headline", ())]
    return f"{max(found):.2f}x" if found else ""
