"""Sizes in bytes with their unit written out: 1GiB, 512MiB, 2GB."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

UNITS = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}
BINARY_UNITS = ("TiB", "GiB", "MiB", "KiB", "B")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def parse_bytes(value: object) -> int:
    """Bytes of "1GiB". Raises ValueError when the unit is missing or unknown, or the size is no whole number of bytes."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"a size is a number with a unit, such as 1GiB or 512MiB, got {value!r}")
    number, unit = match.groups()
    factor = UNITS.get(unit)
    if factor is None:
        raise ValueError(f"unknown unit {unit!r} in {value!r}: use one of {', '.join(UNITS)}")
    size = float(number) * factor if "." in number else int(number) * factor
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size)


def format_bytes(size: int) -> str:
    """The exact inverse of parse_bytes: the largest binary unit that divides `size`."""
    unit = next(unit for unit in BINARY_UNITS if size % UNITS[unit] == 0) if size else "B"
    return f"{size // UNITS[unit]}{unit}"


def approximate_bytes(size: int) -> str:
    """For people: one decimal in the largest binary unit that fits, "1.3 GiB"."""
    unit = next((unit for unit in BINARY_UNITS if abs(size) >= UNITS[unit]), "B")
    return f"{size} B" if unit == "B" else f"{size / UNITS[unit]:.1f} {unit}"


# Written as text both in YAML and in pipeline.json; an int of bytes in Python.
ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str, when_used="always"),
    WithJsonSchema({"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)?\s*({'|'.join(UNITS)})$", "examples": ["1GiB", "512MiB"]}),
]
