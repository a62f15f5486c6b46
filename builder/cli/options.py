"""Options that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Pipeline = Annotated[Path, typer.Argument(help="The pipeline.yaml.")]
Repository = Annotated[Path, typer.Option(help="Folder of the model repository.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DEFAULT_REPOSITORY = Path("model_repository")
