"""`builder bench`: what decoding costs on this machine, plainly and speculatively, and how good the prediction is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Repository
from builder.errors import SpecError
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # the bench loads engines and so imports torch: seconds that --help must not pay
    from collections.abc import Iterable

    from builder.bench.report import Report
    from builder.bench.tables import Table as Content
    from builder.repository.versions import Version
    from builder.spec.load import LoadedPipeline

REPORTS = Path("reports")


def bench(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml; it is built first where that is needed.")],
    json: Json = False,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.html and report.json.", show_default="reports/bench-NAME-TIME")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Six prompts, 64 tokens, the version's own K.")] = False,
    classes: Annotated[str | None, typer.Option(help="Prompt classes, separated by commas.", show_default="facts,code,rewrite")] = None,
    tokens: Annotated[int, typer.Option(min=2, max=4096, help="Length of each answer, tokens.")] = 128,
    concurrency: Annotated[
        str | None, typer.Option(help="Measure so many streams at once instead, numbers separated by commas, such as 1,4,16.")
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help="Draft lengths, separated by commas.", show_default="1,2,3,4")] = None,
    triton: Annotated[bool, typer.Option("--triton/--no-triton", help="Also measure through Triton.")] = True,
    placement: Annotated[
        bool, typer.Option("--placement", help="Measure the draft on each device there is instead, with the version's own K.")
    ] = False,
    changing: Annotated[
        float | None,
        typer.Option(min=1, max=3600, help="Measure traffic that changes every so many seconds instead: adaptive K, each fixed K."),
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Also measure the other engines of loadtest/peers.")] = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Measure plain and speculative decoding on the shipped prompts; exit 1 if a token differs from plain decoding.

    Example: `builder bench pipelines/smollm2.yaml --quick`

    With many streams at once: `builder bench pipelines/smollm2.yaml --concurrency 1,4,16`

    Whether adaptive K keeps up with changing traffic: `builder bench pipelines/smollm2.yaml --changing 30`

    Where the draft should run: `builder bench pipelines/smollm2.yaml --placement --json`
    """
    loaded = load_pipeline(pipeline)
    if placement:
        _bench_placement(loaded, tokens, classes, quick, repository, json)
        return
    if changing is not None:
        _bench_changing(loaded, changing, tokens, repository, json)
        return
    if concurrency is not None:
        _bench_streams(loaded, concurrency, tokens, classes, quick, peers, repository, report, json)
        return
    from builder.bench.files import write_report
    from builder.bench.session import Options, run_bench
    from builder.repository.version_bench import write_bench

    options = Options(tokens, _numbers(k, "--k"), _words(classes), quick, triton, peers)
    options.prompts()  # a wrong class or K is told before minutes of work
    options.lengths(loaded.spec.speculation.max_draft_tokens)
    name = loaded.spec.metadata.name
    with _built(loaded, repository) as (version, say):
        made = run_bench(loaded, version, options, say)
        page = write_report(made, report or REPORTS / f"bench-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    write_bench(version, made.to_json())
    if json:
        print_json(made.to_json())
    else:
        _show(made)
    err.print(f"Report: {page}", markup=False, soft_wrap=True)
    if made.identity.fraction < 1:
        raise typer.Exit(1)


def _bench_streams(
    loaded: LoadedPipeline,
    concurrency: str,
    tokens: int,
    classes: str | None,
    quick: bool,
    peers: bool,
    repository: Path,
    report: Path | None,
    json: bool,
) -> None:
    from builder.bench.load_report import write_load_report
    from builder.bench.load_session import LoadOptions, run_load

    levels = _numbers(concurrency, "--concurrency")
    if levels is None:
        raise SpecError("there is no number of streams", where="--concurrency", mend="Write numbers such as 1,4,16")
    options = LoadOptions(levels, tokens, 1 if quick else 3, _words(classes), peers)
    options.check()
    name = loaded.spec.metadata.name
    with _built(loaded, repository) as (version, say):
        made = run_load(loaded, version, options, say)
        page = write_load_report(made, report or REPORTS / f"streams-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    if json:
        print_json(made.to_json())
    else:
        _print_tables(made.tables())
    err.print(f"Report: {page}", markup=False, soft_wrap=True)


def _bench_placement(loaded: LoadedPipeline, tokens: int, classes: str | None, quick: bool, repository: Path, json: bool) -> None:
    from builder.bench.placement import measure_placements
    from builder.bench.session import Options

    options = Options(tokens, classes=_words(classes), quick=quick)
    prompts = options.prompts()
    with _built(loaded, repository) as (version, say):
        made = measure_placements(version, prompts, options.answer_tokens, say)
    if json:
        print_json(made.to_json())
        return
    _print_tables([made.table()])
    out.print(f"Put the draft on {made.recommended}." if made.recommended else "Drafts pay on none of these: decode plainly.")


def _bench_changing(loaded: LoadedPipeline, seconds: float, tokens: int, repository: Path, json: bool) -> None:
    from builder.bench.changing import measure_changing

    with _built(loaded, repository) as (version, say):
        made = measure_changing(version, seconds, tokens, say)
    if json:
        print_json(made.to_json())
        return
    _print_tables([made.table()])
    out.print(f"Adaptive K makes {made.over_best_fixed:.2f} of the best fixed K in hindsight, {made.best_fixed.name}.")


@contextmanager
def _built(loaded: LoadedPipeline, repository: Path) -> Iterator[tuple[Version, Callable[[str], None]]]:
    """The live version, built first where that is needed, and where to say what is measured."""
    from builder.build import build_pipeline
    from builder.repository.live import serving_version

    with err.status("building") as status:  # shows nothing where stderr is no terminal: there each step is a line
        build_pipeline(loaded.path, repository)
        yield serving_version(repository, loaded.spec.metadata.name), status.update if err.is_terminal else err.print


def _words(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) or None if text is not None else None


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    try:
        return tuple(map(int, _words(text) or ())) or None
    except ValueError as error:
        raise SpecError(f"{text} is no list of numbers", where=option, mend="Write numbers separated by commas, such as 1,2,4") from error


def _show(made: Report) -> None:
    from builder.bench.tables import tables

    _print_tables(tables(made))
    for setting, speedup in made.headline.values():
        out.print(f"{setting.method}: {speedup:.2f}x over plain at K={setting.draft_tokens}, median over facts and code.")
    if made.best is not None:
        out.print(f"Recommended K: {made.best.draft_tokens}. Median error of the prediction: {100 * made.prediction_error:.1f} %.")
    _show_identity(made)


def _print_tables(contents: Iterable[Content]) -> None:
    for content in contents:
        table = Table(*content.columns, title=content.title, title_justify="left", box=None, pad_edge=False)
        for column in table.columns[content.names :]:
            column.justify = "right"
        for row in content.rows:
            table.add_row(*row)
        out.print(table)
        out.print(content.note, "", sep="\n", style="dim")


def _show_identity(made: Report) -> None:
    identity = made.identity
    if identity.first_difference is None:
        out.print(f"[green]All {identity.compared} answers have the tokens of plain decoding.[/]")
        return
    found = identity.first_difference
    out.print(
        f"[bold red]{identity.compared - identity.identical} of {identity.compared} answers differ from plain decoding.[/] First: "
        f"prompt {found.prompt}, token {found.position}, {found.setting.method} at K={found.setting.draft_tokens}, "
        f"{found.among} requests at once."
    )
