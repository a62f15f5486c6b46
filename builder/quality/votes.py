"""Human preference, where somebody collected it: a CSV with the columns `case` and `choice` (plain, optimised or tie)."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from builder.errors import SpecError

CHOICES = ("plain", "optimised", "tie")
COLUMNS = ("case", "choice")


@dataclass(frozen=True)
class Votes:
    """`p_value` is of the sign test: ties aside, is one side preferred more than chance explains?"""

    plain: int
    optimised: int
    tie: int
    p_value: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_votes(path: Path) -> Votes:
    """SpecError (file:line) for a file that cannot be read, a missing column or another choice. Other columns are ignored."""
    counts: Counter[str] = Counter()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise SpecError(f"no column {' and no column '.join(missing)}", where=f"{path}:1", mend="The head is: case,choice")
            for row in rows:
                choice = (row["choice"] or "").strip().lower()
                if choice not in CHOICES:
                    what = f"{row['choice']!r} is no choice"
                    raise SpecError(what, where=f"{path}:{rows.line_num}", mend=f"Write one of {', '.join(CHOICES)}")
                counts[choice] += 1
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the votes cannot be read ({error})", where=str(path)) from error
    decided = counts["plain"] + counts["optimised"]
    p_value = float(stats.binomtest(counts["optimised"], decided).pvalue) if decided else 1.0
    return Votes(counts["plain"], counts["optimised"], counts["tie"], p_value)
