"""The gate of `builder build`: the quick form on a version that nobody can see yet."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import CheckError
from builder.progress import Progress
from builder.quality.baseline import FOLDER
from builder.quality.files import write_report
from builder.quality.protocol import Verification, require, verify
from builder.quality.published import REPORTS, live_baseline
from builder.spec.load import LoadedPipeline

REFUSED = "refused"


def verify_staged(folder: Path, loaded: LoadedPipeline, repository: Path, progress: Progress) -> Mapping[str, Any]:
    """The summary for the manifest; the report stays inside the version.

    CheckError when a gate says no; the report is then where the error says, in the place of the last refused one.
    """
    spec = loaded.spec
    name = spec.metadata.name
    live = live_baseline(repository, name)
    report = verify(Verification(folder, spec, loaded.base, "staged", True, live), progress)
    write_report(report, folder / FOLDER)
    try:
        require(report)
    except CheckError as error:
        kept = repository / REPORTS / name / REFUSED
        shutil.rmtree(kept, ignore_errors=True)
        page = write_report(report, kept)
        raise CheckError(error.what, where=str(page), mend=error.mend) from error
    return report.summary()
