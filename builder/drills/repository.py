"""A repository of the drill's own, made of a published version: nothing of a drill touches what serves users."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.files import sha256
from builder.repository.engine import DRAFT, KERNELS, TARGET
from builder.repository.layout import TOKENIZER_FOLDER
from builder.repository.publish import Release, publish
from builder.repository.versions import Version


def release_of(version: Version, speculation: Mapping[str, Any], engines: Mapping[str, Path] | None = None) -> Release:
    """What `version` was published from, with these settings of `speculation` and these engine folders beside or in place of its own."""
    source, manifest = version.decode_folder, version.manifest
    own = {name: source / name for name in (TARGET, DRAFT, KERNELS) if (source / name).is_dir()}
    texts = {path.name: path.read_text(encoding="utf-8") for path in (source / TOKENIZER_FOLDER).iterdir()}
    spec = {**manifest.spec, "speculation": {**manifest.spec["speculation"], **speculation}}
    return Release(version.pipeline, spec, manifest.fingerprints, texts, {**own, **(engines or {})})


def copy_version(version: Version, repository: Path, speculation: Mapping[str, Any], engines: Mapping[str, Path] | None = None) -> Version:
    """Publish `version` anew in `repository` (made), as `release_of` describes it."""
    repository.mkdir(parents=True, exist_ok=True)
    copied, _ = publish(repository, release_of(version, speculation, engines))
    return copied


def replace_model(version: Version, source: str) -> None:
    """Put another model.py into the decode model of a drill's version; its manifest follows."""
    path = version.decode_folder / "model.py"
    path.write_text(source, encoding="utf-8")
    shutil.rmtree(path.with_name("__pycache__"))
    manifest, model = version.manifest, version.decode_folder.parent.name
    files = {name: digest for name, digest in manifest.files.items() if not name.startswith(f"{model}/__pycache__/")}
    dataclasses.replace(manifest, files={**files, f"{model}/{path.name}": sha256(path)}).write(version.decode_folder)
