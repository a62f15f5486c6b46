"""Verify a version that is in the repository, and keep the report beside it."""

from __future__ import annotations

from pathlib import Path

from builder.progress import Progress
from builder.quality.baseline import Baseline, read_baseline
from builder.quality.files import write_report
from builder.quality.protocol import Verification, verify
from builder.quality.report import Report
from builder.quality.votes import Votes
from builder.repository.live import live_version
from builder.repository.models.folder import read_spec
from builder.repository.versions import Version
from builder.spec.load import LoadedPipeline

REPORTS = ".quality"  # in the repository; hidden, and no model for Triton


def verify_version(
    version: Version,
    loaded: LoadedPipeline,
    *,
    quick: bool,
    votes: Votes | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Report, Path]:
    """The report and its page. The engine is as it was built; suites and limits are those of the file by now."""
    built = read_spec(version.decode_folder)
    spec = built.model_copy(update={"quality": loaded.spec.quality})
    live = live_baseline(version.repository, version.pipeline, other_than=version.number)
    wanted = Verification(version.decode_folder, spec, loaded.base, str(version.number), quick, live, votes)
    report = verify(wanted, progress)
    return report, write_report(report, folder or reports_folder(version))


def live_baseline(repository: Path, pipeline: str, other_than: int | None = None) -> Baseline | None:
    """What the live version showed when it was verified; None when nothing is live, or no other version is."""
    live = live_version(repository, pipeline)
    if live is None or live.number == other_than:
        return None
    return read_baseline(live.decode_folder, live.number)


def reports_folder(version: Version) -> Path:
    """Where later verifications of a version go: its own folder stays as it was published."""
    return version.repository / REPORTS / version.pipeline / str(version.number)
