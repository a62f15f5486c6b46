"""A repository of one version, for a server that serves it while another one is live.

It has the same four models, with a link to the version's folder in each. Flags, events and usage ledger are the repository's own:
a switch works for both servers, and what both answer is billed in one place.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from builder.repository.live import write_ensemble, write_members
from builder.repository.versions import Version

FOLDER = ".canary"  # hidden: no model for Triton
SHARED = (".flags", ".ledger")


def make_view(version: Version) -> Path:
    """The folder, made anew. Only under the lock of a canary: there is one for each pipeline."""
    repository = version.repository.resolve()
    view = remove_view(repository, version.pipeline)
    for model, folder in version.folders.items():
        (view / model).mkdir(parents=True)
        (view / model / str(version.number)).symlink_to(repository / folder.relative_to(version.repository))
    for name in SHARED:
        (repository / name).mkdir(exist_ok=True)
        (view / name).symlink_to(repository / name)
    write_members(view, version.pipeline, version.number)
    write_ensemble(view, version.pipeline, version.number)
    return view


def remove_view(repository: Path, pipeline: str) -> Path:
    """Where it was. The links are removed, never what they point to."""
    view = repository.resolve() / FOLDER / pipeline
    shutil.rmtree(view, ignore_errors=True)
    return view
