"""What `builder align` was last asked beyond pipeline.yaml, kept beside it, so that later builds make the same draft.

The newest word counts: a later change of draft.alignment in pipeline.yaml, or removing the file, ends what it says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from builder.align.recipe import AlignmentOptions
from builder.errors import SpecError
from builder.files import sync_folder
from builder.spec.draft import Draft
from builder.spec.load import LoadedPipeline


def record_file(pipeline: Path) -> Path:
    """smollm2.yaml -> smollm2.alignment.json"""
    return pipeline.with_suffix(".alignment.json")


def write_record(loaded: LoadedPipeline, draft: Draft, options: AlignmentOptions) -> None:
    """Complete or not at all. Options that pipeline.yaml asks for anyway need no record: one that is there is removed."""
    path = record_file(loaded.path)
    if options == AlignmentOptions.of(draft, loaded.base):
        path.unlink(missing_ok=True)
    else:
        text = _relative(options.text, loaded.base) if options.text else None
        record = {"minutes": options.minutes, "seed": options.seed, "text": text, "instead_of": _section(draft)}
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        with staged.open("w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    sync_folder(path.parent)


def wanted_alignment(loaded: LoadedPipeline, draft: Draft) -> AlignmentOptions | None:
    """The record's options while pipeline.yaml says what it said then; else pipeline.yaml's own; None for no alignment.

    Raises SpecError when the record cannot be read, or the text it names is gone.
    """
    path = record_file(loaded.path)
    if not path.is_file():
        return AlignmentOptions.of(draft, loaded.base)
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        text = loaded.base / record["text"] if record["text"] else None
        options = AlignmentOptions(float(record["minutes"]), int(record["seed"]), text)
        instead_of = record["instead_of"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"the record of `builder align` cannot be read ({error})", where=str(path), mend="Remove it, or align again"
        ) from None
    if instead_of != _section(draft):
        return AlignmentOptions.of(draft, loaded.base)
    if text is not None and not text.is_file():
        raise SpecError(
            f"the draft was aligned on {text}, which is not there any more", where=str(path), mend=f"Restore the text, or remove {path}"
        )
    return options


def _section(draft: Draft) -> dict[str, Any] | None:
    return draft.alignment.model_dump(mode="json") if draft.alignment else None


def _relative(text: Path, base: Path) -> str:
    """From the pipeline's folder where it lies below it, so that the two can move together."""
    text, base = text.resolve(), base.resolve()
    return str(text.relative_to(base)) if text.is_relative_to(base) else str(text)
