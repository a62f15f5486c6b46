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
    blocks: Annotated[int, typer.Option(min=1, max=2000, help="Metered blocks of about two seconds, and as many bare ones.")] = 150,
    streams: Annotated[int, typer.Option(min=1, max=64, help="Answers at once.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, max=4096, help="Length of each answer.")] = 192,
    json: Json = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Serve a copy of the live version with metrics and ledger on and off in turn; exit 1 unless they cost under 2 %, shown with 95 %
    confidence, and a scrape under 50 ms.

    Two blocks of the same differ by some percent: give it blocks enough, and an idle machine.

    Example: `python -m loadtest.meter pipelines/smollm2.yaml --blocks 200 --json`
    """
    loaded = load_pipeline(pipeline)
    with tempfile.TemporaryDirectory(prefix="tandem-meter-") as name, err.status("meter") as status:
        tell = status.update if err.is_terminal else err.print
        made = measure_metering(loaded, repository, Path(name), blocks=blocks, streams=streams, tokens=tokens, on_progress=tell)
    if json:
        print_json(made.to_json())
    else:
        for arm, spread in made.tokens_per_second.items():
            out.print(f"{arm}: {spread.median:.1f} tokens/s ({spread.p25:.1f} to {spread.p75:.1f})")
        for what, found in ((f"cost, at most {MOST_COST:.0%}", made.cost), ("bare beside bare", made.control)):
            out.print(f"{what}: {found.median:.2%} ({found.low:.2%} to {found.high:.2%} with 95 % confidence)")
        for what, spread in (("Triton's port", made.scrape), ("the exporter", made.exporter_scrape)):
            most = MOST_SCRAPE_SECONDS * 1e3
            out.print(f"scrape of {what}: {spread.median * 1e3:.1f} ms (p75 {spread.p75 * 1e3:.1f}), at most {most:.0f} ms")
        out.print(made.verdict)
    if made.verdict != "passed":
        raise typer.Exit(1)


def main() -> None:
    try:
        typer.run(meter)
    except TandemError as error:
        print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
