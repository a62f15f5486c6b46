"""`builder plan`: is this pipeline fit to be built here, and will speculation pay?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from builder.cli.console import findings_table, out, print_json
from builder.errors import SpecError
from builder.spec.load import load_pipeline
from builder.spec.sizes import approximate_bytes

if TYPE_CHECKING:  # the plan opens checkpoints and so imports torch: seconds that --help and init must not pay
    from builder.plan.cost import Prediction
    from builder.plan.report import Measured, Plan


def plan(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml to check.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    acceptance: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Measured acceptance rate, 0 to 1.")] = None,
    plain_ms: Annotated[float | None, typer.Option(min=1e-6, help="Measured plain step, milliseconds.")] = None,
    draft_ms: Annotated[float | None, typer.Option(min=0.0, help="Measured draft step, milliseconds.")] = None,
    verify_ms: Annotated[float | None, typer.Option(min=1e-6, help="Measured verify pass, milliseconds.")] = None,
) -> None:
    """Check a pipeline against its models and this machine; exit 1 if a check fails. Compiles nothing.

    With measured numbers it also predicts the speed-up of speculation.

    Example: `builder plan pipelines/smollm2.yaml`

    Example: `builder plan pipelines/smollm2.yaml --acceptance 0.8 --plain-ms 30 --draft-ms 1.5 --verify-ms 35`
    """
    loaded = load_pipeline(pipeline)
    from builder.plan.make import make_plan

    made = make_plan(loaded, measured=_measured(acceptance, plain_ms, draft_ms, verify_ms))
    if json:
        print_json(made.to_json())
    else:
        _show(made)
    if not made.ok:
        raise typer.Exit(1)


def _measured(acceptance: float | None, plain_ms: float | None, draft_ms: float | None, verify_ms: float | None) -> Measured | None:
    from builder.plan.cost import StepTimes
    from builder.plan.report import Measured

    if acceptance is None and plain_ms is None and draft_ms is None and verify_ms is None:
        return None
    if acceptance is None or plain_ms is None or draft_ms is None or verify_ms is None:
        raise SpecError("a prediction needs all four measured numbers", mend="Give --acceptance, --plain-ms, --draft-ms and --verify-ms")
    return Measured(acceptance, StepTimes(plain_ms / 1e3, draft_ms / 1e3, verify_ms / 1e3))


def _show(made: Plan) -> None:
    memory = Table("memory", "size", "how", box=None, pad_edge=False)
    memory.columns[1].justify = "right"
    for item in made.memory.items:
        memory.add_row(item.name, approximate_bytes(item.size), item.how)
    memory.add_row("[bold]total[/]", approximate_bytes(made.memory.total), f"of {approximate_bytes(made.memory.capacity)}")
    out.print(findings_table(made.findings), "", memory, "", sep="\n")
    if made.byte_bound_break_even is not None:
        out.print(f"Break-even acceptance if reading weights were the only cost: {made.byte_bound_break_even:.2f}.")
    if made.prediction:
        _show_prediction(made.prediction)


def _show_prediction(prediction: Prediction) -> None:
    least = "never pays" if prediction.break_even is None else f"pays from acceptance {prediction.break_even:.2f}"
    out.print(
        f"Predicted with acceptance {prediction.acceptance:.2f} and {prediction.draft_tokens} drafted tokens: "
        f"{prediction.tokens_per_round:.2f} tokens a round of {prediction.round_time * 1e3:.1f} ms, "
        f"{prediction.time_per_token * 1e3:.1f} ms a token, {prediction.speed_up:.2f}x; {least}."
    )
