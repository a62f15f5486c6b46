"""Cases of a suite: a prompt and a check that a program can make of the answer."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from builder.errors import SpecError
from builder.spec.quality import SHIPPED_SUITES
from builder.text import Tokenizer

ANSWER_TOKENS = {"facts": 32, "code": 112, "refusals": 48, "rewrite": 48}  # longest answer, by shipped suite
DEFAULT_TOKENS = 64
QUICK_CASES = {"facts": 20, "code": 8, "refusals": 6, "rewrite": 6}
DEFAULT_QUICK = 10


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Check(_Strict):
    """What a right answer shows. Words are whole words; several keys must all hold."""

    any: tuple[str, ...] = Field(default=(), strict=False)  # one of these words
    all: tuple[str, ...] = Field(default=(), strict=False)  # every one of these words
    none: tuple[str, ...] = Field(default=(), strict=False)  # none of these words
    case: bool = False  # whether capitals matter for the three
    pattern: str | None = None  # a regular expression that is found in the answer
    refusal: bool = False  # the answer declines
    python: str | None = None  # assertions that hold after the answer's code was run

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not (self.any or self.all or self.none or self.pattern or self.refusal or self.python):
            raise ValueError("a check needs one of any, all, none, pattern, refusal, python")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern is no regular expression ({error})") from error
        return self


class _Line(_Strict):
    name: str = Field(min_length=1, max_length=200)
    prompt: str = Field(min_length=1)
    check: Check
    max_tokens: int | None = Field(default=None, ge=1, le=4096)


class Case(_Strict):
    suite: str
    name: str
    prompt: str
    check: Check
    max_tokens: int

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.name}"

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The prompt in the model's chat template, if it has one, as token ids."""
        text = tokenizer.chat_prompt([{"role": "user", "content": self.prompt}]) if tokenizer.chats else self.prompt
        return tokenizer.encode(text, add_special_tokens=not tokenizer.chats)


def load_suites(suites: tuple[str, ...], base: Path, *, quick: bool = False) -> tuple[Case, ...]:
    """Shipped suites by name, others from `.jsonl` files below `base`; `quick` takes the first cases of each.

    SpecError (file:line) for a file that cannot be read or a line of another form.
    """
    cases: list[Case] = []
    for suite in suites:
        found = _shipped(suite) if suite in SHIPPED_SUITES else _from_file(base / suite)
        cases += found[: QUICK_CASES.get(suite, DEFAULT_QUICK)] if quick else found
    return tuple(cases)


def _shipped(suite: str) -> list[Case]:
    text = files("builder.quality").joinpath("suites", f"{suite}.jsonl").read_text(encoding="utf-8")
    return _parse(text, suite, suite)


def _from_file(path: Path) -> list[Case]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the suite cannot be read ({error})", where=str(path), mend="Check quality.suites") from error
    return _parse(text, path.stem, str(path))


def _parse(text: str, suite: str, where: str) -> list[Case]:
    cases: list[Case] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = _Line.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            what = f"{place}: {first['msg']}" if place else str(first["msg"])
            mend = 'A line is {"name": ..., "prompt": ..., "check": {"any": [...]}}'
            raise SpecError(what, where=f"{where}:{number}", mend=mend) from error
        if any(case.name == entry.name for case in cases):
            raise SpecError(f"the name {entry.name!r} is used twice", where=f"{where}:{number}", mend="Give each case its own name")
        tokens = entry.max_tokens or ANSWER_TOKENS.get(suite, DEFAULT_TOKENS)
        cases.append(Case(suite=suite, name=entry.name, prompt=entry.prompt, check=entry.check, max_tokens=tokens))
    if not cases:
        raise SpecError("the suite has no cases", where=where)
    return cases
