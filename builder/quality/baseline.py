"""What a version showed when it was verified, kept with it: the next version is compared with the live one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.quality.arms import Arm
from builder.quality.cases import Case
from builder.quality.statistics import Interval, paired_bootstrap

FOLDER = "quality"  # inside `<p>_decode/N/`
REPORT = "report.json"


@dataclass(frozen=True)
class Baseline:
    """Success of the answers as served, by case id."""

    version: int
    success: dict[str, bool]


@dataclass(frozen=True)
class AgainstLive:
    version: int
    cases: int  # in both
    live: float
    candidate: float
    change: Interval


def read_baseline(decode_folder: Path, version: int) -> Baseline | None:
    """None for a version without a report, or with one of another form: there is then nothing to compare with."""
    try:
        report = json.loads((decode_folder / FOLDER / REPORT).read_text(encoding="utf-8"))
        success = {case["id"]: bool(case["optimised"]["success"]) for case in report["cases"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Baseline(version, success) if success else None


def compare_with(baseline: Baseline, cases: Sequence[Case], optimised: Arm) -> AgainstLive | None:
    """On the cases that both answered; None when there are none."""
    pairs = [
        (float(baseline.success[case.id]), float(answer.success))
        for case, answer in zip(cases, optimised.answers, strict=True)
        if case.id in baseline.success
    ]
    if not pairs:
        return None
    live, candidate = ([pair[side] for pair in pairs] for side in (0, 1))
    change = paired_bootstrap(live, candidate)
    return AgainstLive(baseline.version, len(pairs), sum(live) / len(live), sum(candidate) / len(candidate), change)
