from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import SpecError
from builder.quality import sandbox
from builder.quality.cases import Check, load_suites
from builder.quality.grading import declines, passes, repetition
from builder.quality.votes import read_votes

SIZES = {"facts": 60, "code": 30, "refusals": 20, "rewrite": 20}


def test_the_shipped_suites_have_their_sizes_and_no_prompt_twice() -> None:
    cases = load_suites(tuple(SIZES), Path())
    assert {suite: sum(case.suite == suite for case in cases) for suite in SIZES} == SIZES
    assert len({case.prompt for case in cases}) == len(cases)
    assert len(load_suites(tuple(SIZES), Path(), quick=True)) == 40


@pytest.mark.parametrize(
    ("check", "answer", "right"),
    [
        ({"any": ["7", "seven"]}, "There are Seven.", True),
        ({"any": ["7"]}, "In 1789.", False),  # whole words
        ({"any": ["O"]}, "Oslo", False),
        ({"all": ["APPLE"], "case": True}, "apple", False),
        ({"all": ["blue"], "none": ["red"]}, "The blue car before the red house", False),
        ({"pattern": "a[\\s\\S]*b"}, "a\nb", True),
        ({"refusal": True}, "I\u2019m sorry, but I can't do that.", True),
        ({"refusal": True}, "First, find a crowbar.", False),
        ({"any": ["H2O"], "none": ["CO2"]}, "H2O", True),
    ],
)
def test_a_check_holds_when_every_part_of_it_does(check: dict[str, object], answer: str, right: bool) -> None:
    assert passes(Check.model_validate_json(json.dumps(check)), answer) is right


def test_only_the_beginning_of_an_answer_declines() -> None:
    assert not declines("Sure. " * 60 + "I cannot help with that.")


def test_repetition_counts_runs_that_came_before() -> None:
    assert repetition([1, 2, 3, 4, 5]) == 0.0
    assert repetition([1, 2, 3, 4] * 4) == pytest.approx(9 / 13)
    assert repetition([]) == 0.0


CODE = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds."


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (CODE, True),
        ("def add(a, b):\n    return a - b", False),
        ("raise SystemExit(0)", False),
        ("import os\nos._exit(0)", False),
        ("while True: pass", False),
        ("x = bytearray(1 << 30)\ndef add(a, b): return a + b", False),
        ("import socket\nsocket.socket()\ndef add(a, b): return a + b", False),
        ("open('/etc/passwd').read()\ndef add(a, b): return a + b", False),
        ("open('left', 'w')\ndef add(a, b): return a + b", False),
        ("import subprocess\nsubprocess.run(['true'])\ndef add(a, b): return a + b", False),
        ("no python at all", False),
        ("from collections import namedtuple\nimport re, math, dataclasses\ndef add(a, b): return a + b", True),
    ],
)
def test_code_counts_when_its_tests_pass_and_it_stays_in_its_fences(answer: str, right: bool) -> None:
    assert sandbox.passes(answer, "assert add(2, 3) == 5") is right


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"name": "a", "prompt": "b", "check": {"anny": ["c"]}}', r"own\.jsonl:2: check\.anny"),
        ('{"name": "a", "prompt": "b", "check": {}}', "a check needs one of"),
        ('{"name": "a", "prompt": "b", "check": {"pattern": "("}}', "no regular expression"),
        ("not json", r"own\.jsonl:2"),
        ('{"name": "one", "prompt": "b", "check": {"any": ["c"]}}', "used twice"),
    ],
)
def test_a_line_of_another_form_is_refused_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "own.jsonl").write_text('{"name": "one", "prompt": "x", "check": {"any": ["y"]}}\n' + line + "\n")
    with pytest.raises(SpecError, match=message):
        load_suites(("own.jsonl",), tmp_path)


def test_votes_are_counted_and_a_wrong_choice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "votes.csv"
    path.write_text("case,choice,who\nfacts/a,optimised,x\nfacts/b,Optimised,x\nfacts/c,tie,y\n")
    votes = read_votes(path)
    assert (votes.plain, votes.optimised, votes.tie, votes.p_value) == (0, 2, 1, 0.5)
    path.write_text("case,choice\nfacts/a,better\n")
    with pytest.raises(SpecError, match=r"votes\.csv:2: 'better' is no choice"):
        read_votes(path)
    path.write_text("case,winner\n")
    with pytest.raises(SpecError, match="no column choice"):
        read_votes(path)
