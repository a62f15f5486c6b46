"""Is every name one that the stated version knows? Unknown names are fatal when the server loads the model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from builder.plan.trtllm.arguments import SPECULATIVE, Arguments
from builder.plan.trtllm.versions import LLMAPI_LINES, LlmApiLine


def unknown(names: Iterable[str], known: frozenset[str], what: str) -> Iterator[str]:
    """A sentence for each name that is not known."""
    for name in sorted(set(names) - known):
        yield f"{what} {name}{nearest(name, known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def unknown_arguments(arguments: Arguments, line: LlmApiLine) -> Iterator[str]:
    """Sentences about names of LLM() and its sections that `line` does not know."""
    top = {name: value for name, value in arguments.items() if not isinstance(value, dict)}
    yield from _unknown(top, line.sections[""], "argument", "")
    for section, content in arguments.items():
        if not isinstance(content, dict):
            continue
        if section == SPECULATIVE:
            yield from _unknown_speculative(content, line)
        elif section not in line.sections:
            yield f"section {section}{nearest(section, line.sections)}"
        else:
            yield from _unknown(content, line.sections[section], f"{section} key", section)


def _unknown_speculative(content: Arguments, line: LlmApiLine) -> Iterator[str]:
    tag = str(content.get("decoding_type"))
    if tag not in line.speculative:
        yield f"decoding_type {tag}{nearest(tag, line.speculative)}"
        return
    yield from _unknown(content, line.speculative[tag], f"{tag} key", SPECULATIVE)


def _unknown(names: Iterable[str], known: frozenset[str], what: str, section: str) -> Iterator[str]:
    for name in sorted(set(names) - known):
        elsewhere = [version for version, other in LLMAPI_LINES.items() if name in _all(other, section)]
        yield f"{what} {name}{nearest(name, known)}" + (f", a name of {' and '.join(elsewhere)}" if elsewhere else "")


def _all(line: LlmApiLine, section: str) -> frozenset[str]:
    if section == SPECULATIVE:
        return frozenset().union(*line.speculative.values())
    return line.sections.get(section, frozenset())
