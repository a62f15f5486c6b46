"""pydantic's validation errors in the words of pipeline.yaml: key, line, expected, got, did you mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from builder.errors import SpecError
from builder.spec.document import Document, Location
from builder.spec.pipeline import PipelineSpec
from builder.spec.section import Section

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "a section of keys",
    "dict_type": "a section of keys",
    "tuple_type": "a list",
    "too_long": "a shorter list",
}
_BOUNDS = {"greater_than_equal": "at least", "less_than_equal": "at most", "string_too_long": "at most"}


@dataclass(frozen=True)
class Violation:
    """One broken rule. `what` and `mend` are sentences without a full stop."""

    line: int
    what: str
    mend: str | None


def spec_error(error: ValidationError, document: Document, root: type[Section] = PipelineSpec) -> SpecError:
    """One error that lists every violation of the file, a `root`, in the order of its lines."""
    found = sorted(_violations(error, document, root), key=lambda violation: violation.line)
    first = found[0]
    where = f"{document.path}:{first.line}"
    if len(found) == 1:
        return SpecError(first.what, where=where, mend=first.mend)
    lines = [f"  line {v.line}: {v.what}.{f' {v.mend}.' if v.mend else ''}" for v in found]
    return SpecError("\n".join([f"{len(found)} errors", *lines]), where=where)


def _violations(error: ValidationError, document: Document, root: type[Section]) -> Iterator[Violation]:
    by_location: dict[Location, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_location.setdefault(_own_location(details, document), []).append(details)
    for location, group in by_location.items():
        yield _violation(location, group, document, root)


def _own_location(details: ErrorDetails, document: Document) -> Location:
    """The place in the file: pydantic appends the names of union branches and `[key]`, which no file has."""
    location = details["loc"]
    if details["type"] == "conflict":
        return (*location, *details["ctx"]["key"].split("."))
    if details["type"] == "missing":
        return location
    while location and location not in document.lines:
        location = location[:-1]
    return location


def _violation(location: Location, group: list[ErrorDetails], document: Document, root: type[Section]) -> Violation:
    first = group[0]
    line, name, context = document.line(location), _dotted(location), first.get("ctx", {})
    if first["type"] == "conflict":
        return Violation(line, context["what"], context["mend"])
    if first["type"] == "extra_forbidden":
        return _unknown_key(location, line, root)
    if first["type"] == "missing":
        return Violation(line, f"`{name}` is missing", _about(location, root))
    if first["type"] == "value_error":
        return Violation(line, f"`{name}`: {context['error']}", None)
    if first["loc"][-1] == "[key]":
        return Violation(line, f"`{location[-1]}` cannot be a key of {_dotted(location[:-1])}", _about(location[:-1], root))
    expected = " or ".join(_expected(details) for details in group)
    return Violation(line, f"`{name}` must be {expected}, got {_got(location, first['input'], document)}", _about(location, root))


def _expected(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "literal_error":
        return str(context["expected"]).replace("True", "true")
    if kind in _BOUNDS:
        bound = context.get("ge", context.get("le", context.get("max_length")))
        return f"{_BOUNDS[kind]} {bound}{' characters' if 'max_length' in context else ''}"
    if kind == "string_pattern_mismatch":
        return f"of the form {context['pattern']}"
    return details["msg"]


def _got(location: Location, value: Any, document: Document) -> str:
    text = document.texts.get(location)
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return f"{text} (YAML reads it as nothing)" if text else "nothing"
    if isinstance(value, bool) and text is not None and text.lower() not in ("true", "false"):
        return f"{text} (YAML reads it as {str(value).lower()}; quote it if text is meant)"
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{'text ' if isinstance(value, str) else ''}{shown if len(shown) <= 80 else shown[:77] + '...'}"


def _unknown_key(location: Location, line: int, root: type[Section]) -> Violation:
    section = _section(location[:-1], root)
    known = list(section.model_fields) if section else []
    key = str(location[-1])
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    place = f" in {_dotted(location[:-1])}" if len(location) > 1 else ""
    guess = f" (did you mean `{near[0]}`?)" if near else ""
    return Violation(line, f"unknown key `{key}`{place}{guess}", f"Keys here: {', '.join(known)}")


def _section(location: Location, root: type[Section]) -> type[Section] | None:
    """The model of the section at `location`."""
    section = root
    for key in location:
        field = section.model_fields.get(str(key))
        inner = (
            [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type) and issubclass(t, Section)] if field else []
        )
        if not inner:
            return None
        section = inner[0]
    return section


def _about(location: Location, root: type[Section]) -> str | None:
    """The description of the key, which says what it may be."""
    while location and isinstance(location[-1], int):  # an item of a list is described with its list
        location = location[:-1]
    section = _section(location[:-1], root) if location else None
    field = section.model_fields.get(str(location[-1])) if section else None
    return field.description.rstrip(".") if field and field.description else None


def _dotted(location: Location) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".") or "the file"
