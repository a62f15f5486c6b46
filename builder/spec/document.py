"""YAML text to plain data, with the line of every key and the text of every scalar.

A small, predictable YAML: one document of mappings, lists and scalars. No aliases, merge keys or custom tags:
a pipeline is read by people at night, and an alias can make a few lines expand without bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from builder.errors import SpecError

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null")}
_AS_TEXT_TAGS = {_TAG + name for name in ("timestamp", "merge", "value")}  # YAML 1.1 gives these to plain words; they stay text here

Location = tuple[str | int, ...]  # keys and list indexes from the root


@dataclass
class Document:
    """`lines` and `texts` are keyed by location; a mapping's own line is that of its key."""

    path: str
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Location, int] = field(default_factory=dict)
    texts: dict[Location, str] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        return f"{self.path}:{self.line(location)}"

    def line(self, location: Location) -> int:
        """Line of the location, or of the nearest section around it."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses aliases and deep nesting while composing, before anything can expand."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # untyped in types-PyYAML
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not used in pipelines: write the value out", problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_document(path: Path) -> Document:
    """Read one YAML mapping. Raises SpecError with file:line for anything that is not one."""
    text = _read_text(path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise SpecError("the file is empty", where=str(path), mend="`builder init NAME` writes a pipeline to start from")
        if not isinstance(root, yaml.MappingNode):
            raise SpecError(
                "a pipeline is a mapping of keys to values", where=f"{path}:{_line(root)}", mend="Start with `apiVersion: tandem/v1`"
            )
        document = Document(str(path))
        document.data = _mapping(loader, root, (), document)
        return document
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(path, error) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"character U+{error.character:04X} is not allowed in YAML", where=f"{path}:{line}", mend="Remove it") from error


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SpecError("no such file", where=str(path), mend="Check the path, or write one with `builder init NAME`") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot be read: {reason}", where=str(path)) from error
    if len(raw) > MAX_BYTES:
        raise SpecError(f"larger than {MAX_BYTES >> 20} MiB, so hardly a pipeline", where=str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError(f"byte 0x{raw[error.start]:02x} is not UTF-8", where=f"{path}:{line}", mend="Save the file as UTF-8") from error


def _mapping(loader: _Loader, node: yaml.MappingNode, location: Location, document: Document) -> dict[str, Any]:
    _refuse_tag(node, _TAG + "map")
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _AS_TEXT_TAGS | {_TAG + "str"}:
            raise _problem(key_node, "keys are text: quote this one if it is meant so")
        key = key_node.value
        here = (*location, key)
        if key in data:
            raise _problem(key_node, f"key `{key}` is already set on line {document.lines[here]}: keep one")
        document.lines[here] = _line(key_node)
        data[key] = _value(loader, value_node, here, document)
    return data


def _value(loader: _Loader, node: yaml.Node, location: Location, document: Document) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, location, document)
    if isinstance(node, yaml.SequenceNode):
        _refuse_tag(node, _TAG + "seq")
        items = []
        for index, item in enumerate(node.value):
            document.lines[*location, index] = _line(item)
            items.append(_value(loader, item, (*location, index), document))
        return items
    document.texts[location] = node.value
    if node.tag in _AS_TEXT_TAGS:
        return node.value
    if node.tag not in _PLAIN_TAGS:
        raise _problem(node, f"tag {node.tag.replace(_TAG, '!!')} is not used in pipelines: write a plain value")
    try:
        return loader.construct_object(node)
    except ValueError as error:  # a number that only looks like one, or with thousands of digits
        raise _problem(node, f"{node.value[:40]!r} is no number: quote it if text is meant") from error


def _refuse_tag(node: yaml.Node, tag: str) -> None:
    if node.tag != tag:
        raise _problem(node, f"tag {node.tag.replace(_TAG, '!!')} is not used in pipelines")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _problem(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _syntax_error(path: Path, error: yaml.MarkedYAMLError) -> SpecError:
    mark = error.problem_mark or error.context_mark
    what, _, mend = (error.problem or "not valid YAML").partition(": ")
    if "\\t" in what:
        mend = "Indent with spaces, YAML allows no tabs there"
    if error.context:
        parts = (error.context, what) if what.startswith("but ") else (what, error.context)
        what = re.sub(r"\s+", " ", " ".join(parts))
    return SpecError(what, where=f"{path}:{mark.line + 1}" if mark else str(path), mend=mend[:1].upper() + mend[1:] or None)
