"""Sums over the ledger. DuckDB streams the segments, so that millions of records need little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import duckdb

from builder.chargeback.segment import OPEN, SEALED
from builder.errors import LedgerError

MEMORY_LIMIT = "600MB"
ALL_TIME = ("", "9999")  # before and after any ISO 8601 time

# A line that is no JSON comes out as a row of nulls. `number` counts a segment's lines from 1, so its maximum tells what is missing.
_SUMS = """
    SELECT parse_filename(filename, true) AS segment, tenant, version, optimisation,
        count(*), coalesce(max(number), 0), count(*) - count(number),
        count(*) FILTER (counted), count(*) FILTER (counted AND finish_reason = 'cancelled'),
        count(*) FILTER (counted AND finish_reason = 'error'),
        sum(input) FILTER (counted), sum(cached_input) FILTER (counted), sum(output) FILTER (counted), sum(drafted) FILTER (counted),
        sum(rejected) FILTER (counted), sum(target_passes) FILTER (counted), sum(passes_avoided) FILTER (counted),
        sum(compute_seconds) FILTER (counted)
    FROM (
        SELECT *, time BETWEEN $since AND $until AS counted
        FROM read_json($files, format = 'newline_delimited', ignore_errors = true, filename = true, columns = {
            number: 'UBIGINT', time: 'VARCHAR', tenant: 'VARCHAR', version: 'VARCHAR', optimisation: 'VARCHAR', finish_reason: 'VARCHAR',
            input: 'UBIGINT', cached_input: 'UBIGINT', output: 'UBIGINT', drafted: 'UBIGINT', rejected: 'UBIGINT',
            target_passes: 'UBIGINT', passes_avoided: 'UBIGINT', compute_seconds: 'DOUBLE'
        })
    )
    GROUP BY ALL
"""


@dataclass(frozen=True)
class Usage:
    """Sums over records. Tokens as in `Record`; seconds of compute."""

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    input: int = 0
    cached_input: int = 0
    output: int = 0
    drafted: int = 0
    draft_rejected: int = 0
    target_passes: int = 0
    target_passes_avoided: int = 0
    compute_seconds: float = 0.0

    def __add__(self, other: Self) -> Usage:
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Group:
    """Sums of one segment, tenant, version and optimisation. `lines` of which `damaged` are no records; `last` is the highest number."""

    segment: str
    tenant: str
    version: str
    optimisation: str
    lines: int
    last: int
    damaged: int
    usage: Usage

    @property
    def day(self) -> str:
        return self.segment[:10]

    @property
    def writer(self) -> str:
        return self.segment[11:].partition("-")[0]

    @property
    def number(self) -> int:
        """Of the segment among those of its writer, from 1."""
        return int(self.segment.rpartition("-")[2])


def segment_files(folder: Path, first_day: str = "", last_day: str = "9999") -> list[Path]:
    """Segments of these UTC days, both included; those being written too."""
    found = (path for suffix in (SEALED, OPEN) for path in folder.glob(f"*-*-*-*-*{suffix}"))
    return sorted(path for path in found if first_day <= path.name[:10] <= last_day)


def sum_segments(files: Sequence[Path], since: str = ALL_TIME[0], until: str = ALL_TIME[1]) -> list[Group]:
    """Groups over all lines; `usage` counts the records that ended between two times. LedgerError when a file cannot be read."""
    if not files:
        return []
    connection = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "preserve_insertion_order": False, "threads": 2})
    try:
        connection.execute("SET enable_progress_bar = false")  # it would print on stdout, into the report
        rows = connection.execute(_SUMS, {"files": list(map(str, files)), "since": since, "until": until}).fetchall()
    except duckdb.Error as error:
        raise LedgerError(f"the ledger cannot be read ({str(error).splitlines()[0]})", where=str(files[0].parent)) from error
    finally:
        connection.close()
    return [_group(*row) for row in rows]


def sum_folder(folder: Path, first_day: str = "", last_day: str = "9999") -> list[Group]:
    """`sum_segments` of a folder whose writers go on: a segment sealed between listing and reading is found on the second look."""
    try:
        return sum_segments(segment_files(folder, first_day, last_day))
    except LedgerError:
        return sum_segments(segment_files(folder, first_day, last_day))


def _group(
    segment: str,
    tenant: str | None,
    version: str | None,
    optimisation: str | None,
    lines: int,
    last: int,
    damaged: int,
    *sums: float | None,
) -> Group:
    """Sums over no rows are null."""
    usage = Usage(**{field.name: value or 0 for field, value in zip(fields(Usage), sums, strict=True)})  # type: ignore[arg-type]
    return Group(segment, tenant or "", version or "", optimisation or "", lines, last, damaged, usage)
