"""Checkpoints for TensorRT-LLM, made by modelopt in an environment of its own and kept in the engine cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal

from builder.compile.cache import cached_folder
from builder.compile.trtllm.modelopt_export import NOT_INSTALLED
from builder.errors import BuildError
from builder.weights import Checkpoint, TokenizerFiles
from builder.weights.hf_folder import write_hf_folder

PYTHON = "TANDEM_TRTLLM_PYTHON"  # in the environment: the Python that has modelopt
ENVIRONMENT = Path(".venv-trtllm/bin/python")  # what `make trtllm` makes
_HERE = resources.files("builder.compile.trtllm")
LAST_LINES = 3  # of a failed export's errors


@dataclass(frozen=True)
class ExportRecipe:
    """What a checkpoint is made of. `layout` trtllm is what trtllm-build reads, hf what the LLM class reads."""

    format: Literal["bfloat16", "int4_awq"]
    layout: Literal["trtllm", "hf"]
    layers: int | None = None
    group_size: int = 128
    logits_dtype: str = "float32"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    def fingerprint(self, checkpoint: Checkpoint) -> str:
        parts = [checkpoint.fingerprint, asdict(self), _text("modelopt_export.py"), _text("calibration.txt")]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def export(
    cache: Path,
    role: str,
    recipe: ExportRecipe,
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    advance: Callable[[str], None],
) -> Path:
    """The folder of a checkpoint in the cache, made when it is not there. A BF16 one for the LLM class needs no modelopt.

    Raises BuildError when modelopt is missing or fails, WeightsError when the weights cannot be read.
    """
    name = f"trtllm-{role}-{recipe.fingerprint(checkpoint)[:16]}"
    return cached_folder(cache, name, partial(_fill, recipe, checkpoint, tokenizer, advance))


def _fill(recipe: ExportRecipe, checkpoint: Checkpoint, tokenizer: TokenizerFiles, advance: Callable[[str], None], folder: Path) -> None:
    if recipe.layout == "hf" and recipe.format == "bfloat16":
        write_hf_folder(folder, checkpoint, tokenizer, recipe.layers)
        advance("written")
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".hf.") as staged:
        write_hf_folder(Path(staged), checkpoint, tokenizer, recipe.layers)
        advance("weights read")
        with resources.as_file(_HERE) as scripts:
            for step in _run(_command(recipe, Path(staged), folder, scripts)):
                advance(step)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors gives 0600, but the server may run as another user
    if not (folder / "config.json").is_file():
        raise BuildError("modelopt wrote no config.json", where=str(folder), mend="Run the build again with TANDEM_DEBUG=1")


def _command(recipe: ExportRecipe, model: Path, out: Path, scripts: Path) -> list[str]:
    options = {
        "model": model,
        "out": out,
        "format": recipe.format,
        "layout": recipe.layout,
        "group-size": recipe.group_size,
        "calibration": scripts / "calibration.txt",
        "logits-dtype": recipe.logits_dtype,
        "tensor-parallel": recipe.tensor_parallel,
        "pipeline-parallel": recipe.pipeline_parallel,
        "threads": len(os.sched_getaffinity(0)),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [str(modelopt_python()), str(scripts / "modelopt_export.py"), *words]


def modelopt_python() -> Path:
    """TANDEM_TRTLLM_PYTHON, else the environment of `make trtllm` where it is, else this Python."""
    if named := os.environ.get(PYTHON):
        return Path(named)
    return ENVIRONMENT.absolute() if ENVIRONMENT.exists() else Path(sys.executable)


def _run(command: list[str]) -> Iterator[str]:
    """The steps that the export tells of. Its errors go to a file, so that neither pipe can fill up while the other is read."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        except OSError as error:
            raise BuildError(
                f"{command[0]} cannot be run ({error.strerror})", where=PYTHON, mend="Name a Python that has modelopt"
            ) from error
        with process:
            try:
                yield from _steps(process)
            except BaseException:  # Ctrl-C included: the export must not go on alone
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            raise _failed(process.returncode, errors.read())


def _steps(process: subprocess.Popen[str]) -> Iterator[str]:
    for line in process.stdout or ():
        if line.startswith('{"step"'):  # libraries print lines of their own
            yield str(json.loads(line)["step"])


def _failed(code: int, errors: str) -> BuildError:
    told = " / ".join(line.strip() for line in errors.strip().splitlines()[-LAST_LINES:])
    if code == NOT_INSTALLED:
        return BuildError(f"modelopt is not installed: {told}", mend=f"Run `make trtllm`, or name a Python that has it in {PYTHON}")
    return BuildError(f"the export with modelopt failed (exit code {code}): {told}", mend="Mend what it says and build again")


def _text(name: str) -> str:
    return _HERE.joinpath(name).read_text(encoding="utf-8")
