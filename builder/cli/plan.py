"""`builder plan`: is this pipeline fit to be built here, and will speculation pay?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from builder.cli.console import findings_table, out, print_json
from builder.cli.options import Json
from builder.errors import SpecError
from builder.spec.load import load_pipeline
from builder.spec.sizes import approximate_bytes

if TYPE_CHECKING:  # the plan opens checkpoints and so imports torch: seconds that --help and init must not pay
    from builder.plan.forecast import Forecast
    from builder.plan.report import Measured, Plan


def plan(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml to check.")],
    json: Json = False,
    acceptance: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Measured acceptance rate, 0 to 1.")] = None,
    plain_ms: Annotated[float | None, typer.Option(min=1e-6, help="Measured plain step, milliseconds.")] = None,
    draft_ms: Annotated[float | None, typer.Option(min=0.0, help="Measured draft step, milliseconds.")] = None,
    verify_ms: Annotated[float | None, typer.Option(min=1e-6, help="Measured verify pass, milliseconds.")] = None,
) -> None:
    """Check a pipeline against its models and this machine; exit 1 if a check fails. Compiles nothing.

    With measured numbers, here or in speculation.measured, it also predicts the speed-up of speculation; for a GPU it
    predicts from the published figures as well. The GPU need not be here, nor the weights if target.model says their shape.

    Example: `builder plan pipelines/smollm2.yaml`

    Example: `builder plan pipelines/llama-7b-a100.yaml --json`

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
    capacity = made.memory.capacity
    of = "of a GPU that is not here" if capacity is None else f"of {approximate_bytes(capacity)}"
    memory.add_row("[bold]total[/]", approximate_bytes(made.memory.total), of)
    out.print(findings_table(made.findings), "", memory, "", sep="\n")
    if made.largest is not None:
        batch, length = made.largest.batch, made.largest.seq_len
        out.print(f"Memory allows a batch of {batch} at this max_seq_len, or {length} tokens at this max_batch_size.")
    if made.devices:
        out.print(_devices(made))
    if made.byte_bound_break_even is not None:
        out.print(f"Break-even acceptance if reading weights were the only cost: {made.byte_bound_break_even:.2f}.")
    if made.predicted:
        _show_forecast(made.predicted)
    if made.roofline and made.roofline is not made.predicted:
        _show_forecast(made.roofline)


def _devices(made: Plan) -> Table:
    """The same pipeline on every kind of GPU."""
    table = Table("GPU", "largest batch", "longest context", box=None, pad_edge=False)
    for name, room in made.devices.items():
        table.add_row(name, str(room.batch or "does not fit"), str(room.seq_len or "does not fit"))
    return table


def _show_forecast(forecast: Forecast) -> None:
    break_even, made = forecast.break_even, forecast.prediction
    least = "never pays" if break_even is None else f"pays from acceptance {break_even:.2f}"
    if made is None:
        out.print(f"By {forecast.source} times it {least}; give an acceptance to predict the speed-up.")
    else:
        out.print(
            f"By {forecast.source} times, with acceptance {made.acceptance:.2f} and {made.draft_tokens} drafted tokens: "
            f"{made.tokens_per_round:.2f} tokens a round of {made.round_time * 1e3:.1f} ms, "
            f"{made.time_per_token * 1e3:.1f} ms a token, {made.speed_up:.2f}x; {least}."
        )
    out.print(f"  It leaves out: {forecast.to_json()['leaves_out']}.", soft_wrap=True)
