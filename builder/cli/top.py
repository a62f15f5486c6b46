"""`builder top`: what a server does now, in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from builder.cli.console import out, print_json
from builder.spec.addresses import reachable
from builder.spec.load import load_pipeline
from builder.telemetry.overview import Overview, overview
from builder.telemetry.scrape import scrape

BAR = 30  # characters of a full bar
NOTHING = "–"


def top(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml of the running server.")],
    interval: Annotated[float, typer.Option(help="Seconds between two looks; rates are those between them.", min=0.2, max=600)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, over one interval, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document; implies --once.")] = False,
) -> None:
    """Show speculation, acceptance, latency, tokens by tenant, requests, KV cache and flags of a running server. Ctrl-C ends it.

    Example: `builder top pipelines/smollm2.yaml`
    """
    spec = load_pipeline(pipeline).spec
    url = f"http://{reachable(spec.serving.host)}:{spec.serving.metrics_port}/metrics"

    def looks() -> Iterator[Overview]:
        older, since = scrape(url), time.monotonic()
        while True:
            time.sleep(interval)
            newer, now = scrape(url), time.monotonic()
            yield overview(older, newer, now - since, spec.metadata.name, spec.slo)
            older, since = newer, now

    if json:
        print_json(asdict(next(looks())))
    elif once:
        out.print(_table(spec.metadata.name, next(looks())))
    else:
        _watch(spec.metadata.name, looks())


def _watch(name: str, looks: Iterator[Overview]) -> None:
    try:
        with Live(console=out, auto_refresh=False) as live:
            for seen in looks:
                live.update(_table(name, seen), refresh=True)
    except KeyboardInterrupt:
        return


def _table(name: str, seen: Overview) -> Table:
    table = Table(title=f"{escape(name)}, the last {seen.seconds:.1f} s", box=None, pad_edge=False, show_header=False, title_justify="left")
    table.add_row("speculation", f"{seen.state or NOTHING}, K {_number(seen.draft_length, '{:.0f}')}")
    table.add_row("acceptance rate", _number(seen.acceptance_rate, "{:.0%}"))
    table.add_row("tokens a round", _number(seen.acceptance_length, "{:.2f}"))
    for position, share in enumerate(seen.accepted_by_position):
        table.add_row(f"  accepted at {position}", f"{'█' * round(share * BAR)} {share:.0%}")
    for key, objective in seen.objectives.items():
        table.add_row(escape(key), f"{_latency(seen.p95[key], objective)} of {objective * 1000:.0f} ms")
    for tenant, rate in seen.output_tokens.items():
        table.add_row(f"tokens/s {escape(tenant)}", f"{rate:.1f}")
    table.add_row("requests", _counts(seen.requests))
    table.add_row("KV blocks", _counts(seen.kv_blocks))
    table.add_row("flags", ", ".join(f"{escape(flag)} {'on' if on else '[bold red]off[/]'}" for flag, on in seen.flags.items()))
    return table


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def _latency(seconds: float | None, objective: float) -> str:
    if seconds is None:
        return NOTHING
    text = f"{seconds * 1000:.0f}"
    return text if seconds <= objective else f"[bold red]{text}[/]"


def _counts(values: Mapping[str, float]) -> str:
    return ", ".join(f"{escape(name)} {value:.0f}" for name, value in values.items())
