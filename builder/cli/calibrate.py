"""`builder calibrate`: find thresholds of early exit whose disagreement with the full model is bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.options import Json, Pipeline
from builder.cli.stages import show_stages
from builder.errors import SpecError
from builder.spec.load import load_pipeline

if TYPE_CHECKING:  # calibration imports torch: seconds that --help must not pay
    from builder.exits.result import CalibrationResult

REPORTS = Path("reports")


def calibrate(
    pipeline: Pipeline,
    text: Annotated[Path | None, typer.Option(help="Your JSONL: a prompt, messages or text a line; joins the shipped ones.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, max=1440, help="Time it may take.", show_default="of pipeline.yaml")] = None,
    answers: Annotated[int | None, typer.Option(min=20, help="Answers the target writes.", show_default="of pipeline.yaml")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Seed.", show_default="of pipeline.yaml")] = None,
    grpc: Annotated[
        str | None, typer.Option(help="trtllm-engine: HOST:PORT of the server with both engines.", show_default="of pipeline.yaml")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.html and report.json.", show_default="reports/calibrate-NAME-TIME")
    ] = None,
    json: Json = False,
) -> None:
    """Train a head for each exit layer, and find thresholds that keep to quality.max_disagreement, or say that there are none.

    The target writes the text itself. An interrupted run goes on where it stood; the same run again is a cache hit. What was found is
    recorded in NAME.calibration.json beside the pipeline, and builds with early_exit.mode answer go by it.

    With trtllm-engine the exit is the draft, and nothing is trained: the two served engines are asked, and always anew.

    Example: `builder calibrate pipelines/smollm2-early-exit.yaml --text mine.jsonl`

    Example: `builder calibrate pipelines/llama-exit-a100.yaml --grpc gpu-host:8001`
    """
    from builder.calibrate import calibrate_pipeline
    from builder.exits.recipe import CalibrationOptions
    from builder.exits.report import write_report
    from builder.exits.served_calibration import calibrate_engines

    loaded = load_pipeline(pipeline)
    asked = CalibrationOptions.of(loaded.spec.early_exit.calibration, loaded.base)
    options = CalibrationOptions(
        asked.minutes if minutes is None else minutes,
        asked.answers if answers is None else answers,
        asked.seed if seed is None else seed,
        text or asked.text,
    )
    served = loaded.spec.engine.chosen_backend == "trtllm-engine"
    if grpc is not None and not served:
        raise SpecError("--grpc is for pipelines of trtllm-engine", where=str(pipeline), mend="Leave it out")
    with show_stages() as progress:
        if served:
            result = calibrate_engines(pipeline, options, address=grpc, progress=progress)
        else:
            result = calibrate_pipeline(pipeline, options, progress=progress)
    folder = report or REPORTS / f"calibrate-{result.pipeline}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    page = write_report(result.pipeline, result.found, folder)
    if json:
        print_json(result.to_json())
    else:
        _show(result)
    err.print(f"Report: {page}", markup=False, soft_wrap=True)


def _show(result: CalibrationResult) -> None:
    from builder.exits.report import drafting_sentence

    found = result.found
    table = Table("layer", box=None, pad_edge=False)
    for column in ("agreement before", "after", "AUROC", "threshold", "tokens that leave"):
        table.add_column(column, justify="right")
    for entry in found["layers"]:
        table.add_row(*_row(entry, found["measure"]))
    held = found["held_out"]
    out.print(table)
    out.print(
        f"Held-out answers: {held['disagreement']:.2%} of tokens differ from the full model's, {held['average_layers']:.1f} of "
        f"{found['depth']} layers a token, {held['predicted_speedup']:.2f}x by weights read. Confidence: {found['measure']}.",
        soft_wrap=True,
    )
    out.print(found["guarantee"], soft_wrap=True)
    out.print(drafting_sentence(found), soft_wrap=True)


def _row(entry: dict[str, Any], measure: str) -> tuple[str, ...]:
    threshold = "none" if entry["threshold"] is None else f"{entry['threshold']:.4f}"
    agreement = f"{entry['agreement_before']:.1%}", f"{entry['agreement_after']:.1%}"
    return str(entry["layer"]), *agreement, f"{entry['auroc'][measure]:.3f}", threshold, f"{entry['exit_share']:.1%}"
