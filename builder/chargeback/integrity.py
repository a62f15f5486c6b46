"""Is the ledger whole: no record lost inside a segment, no segment lost between two others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from builder.chargeback.usage import Group


@dataclass(frozen=True)
class Integrity:
    """`damaged_lines` are no records: one at the end of a segment is a killed writer's torn line, until the next writer cuts it off.

    `missing_records` are gaps in the numbers of a segment, `repeated_records` the opposite. `missing_segments` names gaps
    between a writer's segments; those before the first day that was read are not looked for.
    """

    segments: int
    records: int
    damaged_lines: int
    missing_records: int
    repeated_records: int
    missing_segments: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return not (self.missing_records or self.repeated_records or self.missing_segments)


def check_integrity(groups: Iterable[Group]) -> Integrity:
    lines: dict[str, int] = defaultdict(int)
    last: dict[str, int] = defaultdict(int)
    numbers: dict[str, set[int]] = defaultdict(set)
    damaged = 0
    for group in groups:
        lines[group.segment] += group.lines - group.damaged
        last[group.segment] = max(last[group.segment], group.last)
        numbers[group.writer].add(group.number)
        damaged += group.damaged
    missing = [f"{writer}-{number:06d}" for writer, found in numbers.items() for number in _gaps(found)]
    return Integrity(
        segments=len(lines),
        records=sum(lines.values()),
        damaged_lines=damaged,
        missing_records=sum(max(0, last[segment] - count) for segment, count in lines.items()),
        repeated_records=sum(max(0, count - last[segment]) for segment, count in lines.items()),
        missing_segments=tuple(sorted(missing)),
    )


def _gaps(numbers: set[int]) -> list[int]:
    return [number for number in range(min(numbers), max(numbers)) if number not in numbers]
