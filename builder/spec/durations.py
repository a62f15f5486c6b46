"""Durations with their unit written out: 500ms, 30s, 2m."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

UNITS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}  # milliseconds
_DURATION = re.compile(r"([0-9]+)\s*([a-z]+)")


def parse_duration(value: object) -> float:
    """Seconds of "500ms". Raises ValueError when the unit is missing or unknown, or the number is not whole."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"a duration is a whole number with a unit, such as 500ms or 30s, got {value!r}")
    number, unit = match.groups()
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r} in {value!r}: use one of {', '.join(reversed(UNITS))}")
    return int(number) * UNITS[unit] / 1000


def format_duration(seconds: float) -> str:
    """The exact inverse of parse_duration: the largest unit that divides it."""
    milliseconds = round(seconds * 1000)
    unit = next(unit for unit, size in UNITS.items() if milliseconds % size == 0) if milliseconds else "ms"
    return f"{milliseconds // UNITS[unit]}{unit}"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="always"),
    WithJsonSchema({"type": "string", "pattern": rf"^[0-9]+\s*({'|'.join(UNITS)})$", "examples": ["500ms", "30s"]}),
]
