"""`builder promote`: lets a published version go live, at once or after it was tried on a share of the requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline
from builder.cli.versions import Repository, Servers
from builder.errors import ServeError, SpecError
from builder.repository.versions import find_version, newest
from builder.serve.front_control import FrontControl, running_front
from builder.serve.servers import named_server, running_servers
from builder.spec.durations import parse_duration
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # scipy: a second that --help must not pay
    from builder.canary.watch import Look
    from builder.repository.versions import Version
    from builder.serve.control import ModelControl


def promote(
    pipeline: Pipeline,
    to: Annotated[int | None, typer.Option(help="This version.", show_default="the newest")] = None,
    canary: Annotated[
        int | None, typer.Option(min=1, max=50, help="Try it on this share of the requests first, in percent.", show_default="at once")
    ] = None,
    duration: Annotated[str | None, typer.Option(help="How long it is tried, such as 5m.", show_default="versions.canary")] = None,
    min_requests: Annotated[
        int | None, typer.Option(min=1, help="Fewest requests of each version.", show_default="versions.canary")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the history. Of a canary the numbers are.")] = "",
    server: Servers = None,
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """Let a version that is published go live. No restart, no failed request.

    With --canary it first gets a server of its own and a share of the requests that come through `builder front`, and is promoted or taken
    back by itself within the limits of `versions.canary`. Exit 1 if it was taken back. Whatever ends the command takes the version back.

    Publish the version with `builder build --no-promote` first.

    Example: `builder promote pipelines/smollm2.yaml --canary 10 --duration 10m`
    """
    loaded = load_pipeline(pipeline)
    name = loaded.spec.metadata.name
    wanted = find_version(repository, name, to) if to is not None else newest(repository, name)
    if canary is None:
        _at_once(wanted, [*map(named_server, server or ()), *running_servers(repository, name)], reason, json)
        return
    if server:
        raise SpecError("a canary compares the servers of this machine", where="--server", mend="Leave out --server, or --canary")
    from builder.canary.promote import CanaryRun
    from builder.quality.cases import load_suites

    limits = loaded.spec.versions.canary.model_copy(update={"percent": canary, **_changed(duration, min_requests)})
    cases = load_suites(loaded.spec.quality.suites, loaded.base, quick=True)
    made = CanaryRun(wanted, limits, cases, running_servers(repository, name), _front(wanted), _say).run()
    if json:
        print_json(made.to_json())
    else:
        verb = "promoted" if made.promoted else "not promoted"
        out.print(f"Version {made.tried} of {name} is {verb}: {made.look.why}. Version {made.live} is live.")
    if not made.promoted:
        raise typer.Exit(1)


def _at_once(version: Version, servers: list[ModelControl], reason: str, json: bool) -> None:
    from builder.canary.promote import promote_at_once

    done = promote_at_once(version, servers, reason)
    if json:
        print_json(
            {"pipeline": version.pipeline, "version": done.after, "promoted": True, "live": done.after, "seconds": round(done.seconds, 3)}
        )
    else:
        out.print(f"Version {done.after} of {version.pipeline} is live ({done.seconds:.1f} s); version {done.before} was.")


def _front(version: Version) -> FrontControl:
    found = running_front(version.repository, version.pipeline)
    if found is None:
        what = f"no front of {version.pipeline} runs on this machine: nothing would send requests to the version"
        raise ServeError(what, where=str(version.repository), mend="Start `builder front` and let clients use it, or leave out --canary")
    return found


def _changed(duration: str | None, min_requests: int | None) -> dict[str, float]:
    changed: dict[str, float] = {}
    if duration is not None:
        try:
            changed["duration"] = parse_duration(duration)
        except ValueError as error:
            raise SpecError(str(error), where="--duration") from error
    if min_requests is not None:
        changed["min_requests"] = min_requests
    return changed


def _say(look: Look) -> None:
    arms = f"{look.tried.requests} requests of it, {look.stable.requests} of the live version"
    err.print(f"{look.seconds:6.0f} s  {arms}; {'; '.join(map(str, look.comparisons))}", markup=False, soft_wrap=True)
