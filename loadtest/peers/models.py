"""The one model every peer runs, in the formats they read: made once, kept in the cache folder of the peers.

All formats come from the same BF16 values, so that no peer has a better or worse target than another.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGMLQuantizationType

from builder.compile.cache import cached_folder, default_cache
from builder.errors import WeightsError
from builder.weights.checkpoint import open_checkpoint
from builder.weights.hf_folder import write_hf_folder
from builder.weights.tokenizer_files import open_tokenizer
from loadtest.peers.errors import PeersError
from loadtest.peers.gguf_copy import copy_gguf

_GROUP_SIZE = 64  # weights that share an INT4 scale: divides the rows of small models, where the exporter's own 128 does not


@dataclass(frozen=True)
class Pair:
    """A BF16 target and the 4-bit draft that was quantised from it."""

    target: Path
    draft: Path


def gguf_pair(source: Path) -> Pair:
    """BF16 and Q4_0 GGUF files made from the GGUF file `source`.

    Raises WeightsError when `source` is no GGUF file, BuildError when the cache cannot be written.
    """
    if source.suffix != ".gguf":
        raise WeightsError(f"{source.name} is not a GGUF file", where=str(source), mend="llama.cpp reads GGUF: give a .gguf file")

    def fill(folder: Path) -> None:
        copy_gguf(source, folder / "bf16.gguf", GGMLQuantizationType.BF16)
        copy_gguf(folder / "bf16.gguf", folder / "q4_0.gguf", GGMLQuantizationType.Q4_0)

    folder = cached_folder(_cache(), f"{_digest(source)}-gguf", fill)
    return Pair(folder / "bf16.gguf", folder / "q4_0.gguf")


def hf_folder(source: Path) -> Path:
    """`source` itself when it is a Hugging Face folder, else one made from it. Raises WeightsError or BuildError."""
    if source.is_dir():
        return source

    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        write_hf_folder(folder / "model", open_checkpoint(str(source), Path("/")), open_tokenizer(str(source), Path("/")))

    return cached_folder(_cache(), f"{_digest(source)}-hf", fill) / "model"


def openvino_pair(source: Path) -> Pair:
    """OpenVINO IR with 16-bit and with symmetric INT4 weights, exported by optimum-cli.

    Raises PeersError when the export fails, WeightsError or BuildError as hf_folder does.
    """
    model = hf_folder(source)

    def fill(folder: Path) -> None:
        _export(model, folder / "fp16", "fp16")
        _export(model, folder / "int4", "int4", "--sym", "--group-size", str(_GROUP_SIZE), "--ratio", "1.0")

    folder = cached_folder(_cache(), f"{_digest(source)}-openvino", fill)
    return Pair(folder / "fp16", folder / "int4")


def _export(model: Path, target: Path, weight_format: str, *options: str) -> None:
    tool = Path(sys.executable).with_name("optimum-cli")
    form = ["--task", "text-generation-with-past", "--weight-format", weight_format, *options]
    command = [str(tool), "export", "openvino", "--model", str(model), *form, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeersError(f"the export to OpenVINO failed ({last})", where=str(model), mend="Run `make peers` again")


def _cache() -> Path:
    return default_cache() / "peers"


def _digest(source: Path) -> str:
    """Identifies the weights: of a GGUF file its bytes, of a folder what Checkpoint says."""
    if source.is_dir():
        return open_checkpoint(str(source), Path("/")).fingerprint[:16]
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
