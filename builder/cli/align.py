"""`builder align`: tune the INT4 draft to its target, and publish the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli import build
from builder.cli.console import print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline, Repository
from builder.cli.stages import show_stages
from builder.errors import CheckError


def align(
    pipeline: Pipeline,
    text: Annotated[Path | None, typer.Option(help="Your JSONL: a prompt, messages or text a line; joins the shipped ones.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, max=1440, help="Time it may take; else draft.alignment.minutes or 5.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Seed; else draft.alignment.seed, else 0.")] = None,
    repository: Repository = DEFAULT_REPOSITORY,
    json: Json = False,
) -> None:
    """Tune the draft's scales and norms so that it imitates the target, and publish a version with the better draft.

    The target writes the training text itself. An interrupted run goes on where it stood; the same run again is a cache hit. Later
    builds keep to what was asked here: it is recorded in NAME.alignment.json beside the pipeline.

    Example: `builder align pipelines/smollm2.yaml --text mine.jsonl --minutes 5`
    """
    from builder.align.recipe import AlignmentOptions
    from builder.align.record import write_record
    from builder.build import build_pipeline
    from builder.spec.load import load_pipeline

    loaded = load_pipeline(pipeline)
    draft = loaded.spec.used_draft
    if draft is None:
        raise CheckError(
            "the pipeline has no draft to align", where=str(pipeline), mend="Set speculation.proposer to hybrid or draft_model"
        )
    asked = AlignmentOptions.of(draft, loaded.base) or AlignmentOptions()
    options = AlignmentOptions(asked.minutes if minutes is None else minutes, asked.seed if seed is None else seed, text or asked.text)
    with show_stages() as progress:
        result = build_pipeline(pipeline, repository, progress=progress, alignment=options)
    write_record(loaded, draft, options)
    if json:
        print_json(result.to_json())
    else:
        build.show(result)
