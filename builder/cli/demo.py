"""`builder demo`: what speculation is worth on this machine, shown on three prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Repository
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # the demo loads engines and so imports torch: seconds that --help must not pay
    from builder.demo.comparison import Comparison
    from builder.demo.session import Demo


def demo(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml, already built.")],
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """Answer three prompts plainly and speculatively through Triton and compare; exit 1 if a token differs.

    Starts a server of its own on free ports and ends it.

    Example: `builder demo pipelines/smollm2.yaml`
    """
    loaded = load_pipeline(pipeline)
    from builder.demo.session import run

    with err.status("") as status:  # shows nothing where stderr is no terminal: there each step is a line
        made = run(loaded, repository, on_progress=status.update if err.is_terminal else err.print)
    if json:
        print_json(made.to_json())
    else:
        _show(made)
    if not made.identical:
        raise typer.Exit(1)


def _show(made: Demo) -> None:
    for comparison in made.comparisons:
        verdict = "[green]identical both ways[/]" if comparison.identical else "[bold red]the two ways differ[/]"
        title = f"{comparison.prompt.name}: {escape(comparison.prompt.text.splitlines()[0])}"
        out.print(Panel(escape(comparison.answer.text.strip()), title=title, title_align="left", subtitle=verdict, subtitle_align="left"))
    out.print(_table(made))
    times = made.times
    out.print(
        "Step times, host overhead included: "
        f"plain {times.plain * 1e3:.1f} ms, draft {times.draft * 1e3:.1f} ms, verify ({made.draft_tokens + 1} rows) "
        f"{times.verify * 1e3:.1f} ms. Predicted: the cost model with these times and the measured acceptance, every draft at full "
        "length from the draft model. Measured: medians, decode only, through the whole ensemble."
    )
    out.print(
        "Note: where the file's own weights are quantised, as the demo's are, a quantised draft is accepted more often than with a "
        "model stored in BF16."
    )


def _table(made: Demo) -> Table:
    """A column for each prompt, so that it fits on a narrow terminal."""
    table = Table("", *(comparison.prompt.name for comparison in made.comparisons))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *values in zip(_NAMES, *(_values(comparison) for comparison in made.comparisons), strict=True):
        table.add_row(name, *values)
    return table


_NAMES = (
    "tokens",
    "identical",
    "time to first token",
    "tokens/s, plain",
    "tokens/s, speculative",
    "speed-up, measured",
    "speed-up, predicted",
    "acceptance rate",
    "acceptance length",
)


def _values(comparison: Comparison) -> tuple[str, ...]:
    return (
        str(comparison.answer.completion_tokens),
        "yes" if comparison.identical else "[bold red]NO[/]",
        f"{comparison.plain.first_token * 1e3:.0f} ms",
        f"{comparison.plain.tokens_per_second:.1f}",
        f"{comparison.speculative.tokens_per_second:.1f}",
        f"{comparison.speed_up:.2f}x",
        f"{comparison.prediction.speed_up:.2f}x",
        f"{comparison.stats['draft_acceptance_rate']:.2f}",
        f"{comparison.stats['mean_acceptance_length']:.2f}",
    )
