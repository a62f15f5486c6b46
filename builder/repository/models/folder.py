"""The version folder a Triton model instance runs from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.repository.layout import SPEC_FILE, TOKENIZER_FOLDER
from builder.repository.tokenizer import load_tokenizer
from builder.spec.pipeline import PipelineSpec
from builder.text import Tokenizer


def version_folder(args: dict[str, Any]) -> Path:
    """From the arguments of `initialize`. RepositoryError for a version whose publish was killed before its end.

    Where the ensemble's folder is not beside the model (Triton copies models one by one from an object store), nothing is checked.
    """
    model = Path(args["model_repository"])
    ensemble = model.parent / model.name.rpartition("_")[0]
    if ensemble.is_dir() and not (ensemble / args["model_version"]).is_dir():
        what = f"version {args['model_version']} was not published to its end"
        raise RepositoryError(what, where=str(model), mend="Run `builder build` again, it removes what is left of it")
    return model / str(args["model_version"])


def read_spec(folder: Path) -> PipelineSpec:
    return PipelineSpec.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))


def read_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder / TOKENIZER_FOLDER)
