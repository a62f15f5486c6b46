"""Where a pipeline's ledger is."""

from __future__ import annotations

from pathlib import Path

from builder.spec.chargeback import Chargeback

FOLDER = ".ledger"  # hidden: no model for Triton


def ledger_folder(repository: Path, pipeline: str, chargeback: Chargeback) -> Path:
    """All versions and all servers of a pipeline that mount the repository write there, each to files of its own."""
    return (Path(chargeback.ledger) if chargeback.ledger else repository / FOLDER) / pipeline
