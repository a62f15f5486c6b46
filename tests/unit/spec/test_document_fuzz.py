"""Whatever the bytes, reading ends in a pipeline or in a SpecError."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import SpecError
from builder.spec import load_pipeline, template

LINES = template("demo").splitlines()
yaml_text = st.text(alphabet="abe:{}[],-'\"\n\t #&*!|>%@?~0.1_", max_size=60)


def read(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_bytes(raw)
        with pytest.raises(SpecError):
            load_pipeline(path)
            raise SpecError("a valid pipeline is fine too")


@settings(max_examples=150)
@given(st.binary(max_size=60) | yaml_text.map(str.encode))
def test_any_bytes_end_in_a_spec_error(raw: bytes) -> None:
    read(raw)


@settings(max_examples=100)
@given(line=st.integers(0, len(LINES) - 1), junk=yaml_text)
def test_any_line_of_a_good_file_may_be_spoilt(line: int, junk: str) -> None:
    read("\n".join([*LINES[:line], junk, *LINES[line + 1 :]]).encode())
