"""The prompts file: what is read, and one paragraph for each way it can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.peers.errors import PeersError
from loadtest.peers.prompts import CLASSES, Prompt, read_prompts


def _write(folder: Path, document: object) -> Path:
    path = folder / "prompts.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@given(st.lists(st.tuples(st.sampled_from(CLASSES), st.text(st.characters(exclude_categories=["Cs"]), min_size=1)), min_size=1))
def test_every_valid_prompts_file_reads_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, items: list[tuple[str, str]]) -> None:
    path = _write(tmp_path_factory.mktemp("prompts"), [{"class": kind, "text": text} for kind, text in items])
    assert read_prompts(path) == [Prompt(kind, text) for kind, text in items]


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        ([], "", "holds no list of prompts"),
        ({"class": "facts", "text": "a"}, "", "holds no list of prompts"),
        ([{"class": "facts", "text": "a"}, "b"], "[1]", "a prompt is an object, not str"),
        ([{"class": "facts", "txt": "a"}], "[0]", "Did you mean text"),
        ([{"class": "fact", "text": "a"}], "[0]", "Did you mean facts"),
        ([{"class": "zzz", "text": "a"}], "[0]", "Known are facts, code, rewrite"),
        ([{"class": "code"}], "[0]", "the key text is missing or no text"),
        ([{"class": "code", "text": ""}], "[0]", "the key text is missing or no text"),
        ([{"class": ["code"], "text": "a"}], "[0]", "the key class is missing or no text"),
    ],
)
def test_a_wrong_prompts_file_is_refused_in_one_paragraph(tmp_path: Path, document: object, place: str, words: str) -> None:
    path = _write(tmp_path, document)
    with pytest.raises(PeersError) as refused:
        read_prompts(path)
    paragraph = refused.value.paragraph()
    assert paragraph.startswith(f"{path}{place}: ")
    assert words in paragraph
    assert "\n" not in paragraph


def test_a_prompts_file_that_is_not_json_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text('[\n{"class": }]', encoding="utf-8")
    with pytest.raises(PeersError, match=r"prompts\.json:2: the prompts file is not JSON"):
        read_prompts(path)


def test_a_prompts_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    with pytest.raises(PeersError, match="cannot be read"):
        read_prompts(path)
    path.write_bytes(b'["\xff"]')
    with pytest.raises(PeersError, match="not UTF-8"):
        read_prompts(path)
