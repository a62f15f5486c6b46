"""From what `builder calibrate` recorded to a release that serves by it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import CheckError
from builder.plan.calibration import CalibrationRecord, read_calibration
from builder.repository.exits import EXITS, read_calibration_file
from builder.repository.publish import Release
from builder.spec.load import LoadedPipeline


@dataclass(frozen=True)
class CalibratedExits:
    """`folder` holds calibration.json, and exit heads where there are any."""

    record: CalibrationRecord
    folder: Path

    def join(self, release: Release) -> Release:
        """The release with these exits."""
        return replace(
            release,
            engines={**release.engines, EXITS: self.folder},
            fingerprints={**release.fingerprints, "exits": self.record.fingerprint},
            results={**release.results, "early_exit": read_calibration_file(self.folder)},
        )


def find_calibrated(pipeline: LoadedPipeline, cache: Path) -> CalibratedExits | None:
    """None where the pipeline has no early exit or no calibration yet; the plan has checked that what there is fits it. CheckError where
    the engine cache has lost it."""
    record = read_calibration(pipeline.path) if pipeline.spec.early_exit.mode != "none" else None
    if record is None:
        return None
    folder = cache / record.folder
    if not folder.is_dir():
        what = "what the calibration found is not in the engine cache any more"
        raise CheckError(what, where=str(folder), mend=f"Run `builder calibrate {pipeline.path}` again")
    return CalibratedExits(record, folder)
