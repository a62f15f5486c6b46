"""pipeline.yaml from disk, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from builder.spec.document import read_document
from builder.spec.pipeline import PipelineSpec
from builder.spec.violations import spec_error


@dataclass(frozen=True)
class LoadedPipeline:
    """A checked pipeline and the file it came from. Relative references in it start at `base`."""

    spec: PipelineSpec
    path: Path

    @property
    def base(self) -> Path:
        return self.path.parent


def load_pipeline(path: str | Path) -> LoadedPipeline:
    """Read and check a pipeline. Raises SpecError with file:line for the first error; its text lists all of them."""
    path = Path(path)
    document = read_document(path)
    try:
        return LoadedPipeline(PipelineSpec.model_validate(document.data), path)
    except ValidationError as error:
        raise spec_error(error, document) from error
