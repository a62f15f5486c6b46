"""manifest.json: what a version is made of, and the hash of every file in it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from builder import __version__
from builder.errors import RepositoryError
from builder.files import sha256, write_atomically

FILE_NAME = "manifest.json"
REBUILD = "Build the pipeline again"


@dataclass(frozen=True)
class Manifest:
    """`files` maps a path below the repository, without the version folder (`<p>_decode/target/engine.json`), to its SHA-256.

    `fingerprints` name the parts (weights, tokenizer, engines ...), `results` is what the build measured (acceptance ...).
    """

    pipeline: str
    fingerprint: str  # of fingerprints and spec: equal means nothing to publish
    fingerprints: Mapping[str, str]
    spec: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    created: str = ""  # UTC, ISO 8601

    def write(self, decode_folder: Path) -> None:
        write_atomically(decode_folder / FILE_NAME, json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")

    def check(self, folders: Mapping[str, Path]) -> None:
        """Compare every file with its hash; `folders` is the version folder by model. RepositoryError names the first that differs."""
        for name, expected in self.files.items():
            model, _, inner = name.partition("/")
            path = folders[model] / inner
            if not path.is_file():
                raise RepositoryError("a file of this version is missing", where=str(path), mend=REBUILD)
            if sha256(path) != expected:
                raise RepositoryError("a file of this version was changed after it was published", where=str(path), mend=REBUILD)


def read_manifest(decode_folder: Path) -> Manifest:
    """RepositoryError when it is missing, not JSON, or of another shape."""
    path = decode_folder / FILE_NAME
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RepositoryError(f"the manifest cannot be read ({error})", where=str(path), mend=REBUILD) from error


def fingerprint(spec: Mapping[str, Any], fingerprints: Mapping[str, str]) -> str:
    """SHA-256 over the canonical JSON of both."""
    return hashlib.sha256(json.dumps([spec, fingerprints], sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tool_versions() -> dict[str, str]:
    """Versions that may change what a build makes or how it runs."""
    found = {"builder": __version__, "python": platform.python_version()}
    for tool, distribution in {"torch": "torch", "tokenizers": "tokenizers", "tritonserver": "nvidia-pytriton"}.items():
        try:
            found[tool] = version(distribution)
        except PackageNotFoundError:
            found[tool] = "absent"
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
