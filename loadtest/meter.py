"""`python -m loadtest.meter`: the share of tokens a second that metrics and ledger take."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.console import err, out, print_error, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline, Repository
from builder.errors import TandemError
from builder.spec.load import load_pipeline
from loadtest.metering import MOST_COST, MOST_SCRAPE_SECONDS, measure_metering


def meter(
    pipeline: Pipeline,
    pairs: Annotated[int, typer.Option(min=1, max=1000, help="Blocks of each server.")] = 12,
    streams: Annotated[int, typer.Option(min=1, max=64, help="Answers at once.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, max=4096, help="Length of each answer.")] = 192,
    json: Json = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Serve a copy of the live version with metrics and ledger and without, in turn; exit 1 beyond 2 % or a scrape beyond 50 ms.

    Two blocks of the same differ by some percent: give it pairs enough, and an idle machine.

    Example: `python -m loadtest.meter pipelines/smollm2.yaml --pairs 20 --json`
    """
    loaded = load_pipeline(pipeline)
    with tempfile.TemporaryDirectory(prefix="tandem-meter-") as name, err.status("meter") as status:
        tell = status.update if err.is_terminal else err.print
        made = measure_metering(loaded, repository, Path(name), pairs=pairs, streams=streams, tokens=tokens, on_progress=tell)
    if json:
        print_json(made.to_json())
    else:
        for arm, spread in made.tokens_per_second.items():
            out.print(f"{arm}: {spread.median:.1f} tokens/s ({spread.p25:.1f} to {spread.p75:.1f})")
        cost = made.cost
        out.print(f"cost: {cost.median:.2%} ({cost.p25:.2%} to {cost.p75:.2%}), at most {MOST_COST:.0%}")
        for what, spread in (("Triton's port", made.scrape), ("the exporter", made.exporter_scrape)):
            most = MOST_SCRAPE_SECONDS * 1e3
            out.print(f"scrape of {what}: {spread.median * 1e3:.1f} ms (p75 {spread.p75 * 1e3:.1f}), at most {most:.0f} ms")
    if not made.passed:
        raise typer.Exit(1)


def main() -> None:
    try:
        typer.run(meter)
    except TandemError as error:
        print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
