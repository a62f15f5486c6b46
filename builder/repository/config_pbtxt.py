"""config.pbtxt: written from and read into Triton's own protobuf message, so no field can be misspelt."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from builder.errors import RepositoryError
from builder.files import write_atomically

FILE_NAME = "config.pbtxt"
HEADER = "# Written by `builder build` and `builder rollback`: which version is live. Changes are overwritten.\n"


def to_text(config: ModelConfig) -> str:
    return HEADER + text_format.MessageToString(config)


def parse(text: str, where: str = FILE_NAME) -> ModelConfig:
    """The message that `text` describes. RepositoryError (file:line) for an unknown field or bad syntax."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        line = f":{error.GetLine()}" if error.GetLine() is not None else ""
        raise RepositoryError(
            f"not a Triton model configuration: {error}", where=f"{where}{line}", mend="Build the pipeline again"
        ) from error


def read(model_folder: Path) -> ModelConfig:
    path = model_folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RepositoryError(f"cannot be read ({error})", where=str(path), mend="Build the pipeline again") from error
    return parse(text, where=str(path))


def write(model_folder: Path, config: ModelConfig) -> None:
    """Replace the model's configuration in one rename; untouched when nothing changes, since Triton reloads on a new mtime."""
    path = model_folder / FILE_NAME
    text = to_text(config)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)
