"""The command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from builder.cli import main

CallBuilder = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call_builder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CallBuilder:
    """call_builder("init", "demo") -> exit code, stdout, stderr; as wide as a log."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["builder", *arguments])
        try:
            main.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
