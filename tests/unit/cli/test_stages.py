from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from builder.cli import stages


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What stderr holds when it is no terminal."""
    text = io.StringIO()
    monkeypatch.setattr(stages, "err", Console(file=text, highlight=False))
    yield text


def test_a_log_gets_a_line_for_each_stage_and_one_now_and_then_while_it_lasts(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 10.0, 31.0, 40.0, 62.0, 63.0))
    monkeypatch.setattr(stages.time, "monotonic", lambda: next(clock))
    with stages.show_stages() as progress:
        progress.stage("answers [plain]", 40)
        for _ in range(4):
            progress.advance("answer")
        progress.stage("sampled distributions", 2)
    assert log.getvalue().splitlines() == [
        "answers [plain]",
        "answers [plain]: 2 of 40",
        "answers [plain]: 4 of 40",
        "sampled distributions",
    ]


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(stages, "err", Console(file=text, force_terminal=True))
    with stages.show_stages() as progress:
        progress.stage("kernels", 2)
        progress.advance("gemm")
    assert "kernels" in text.getvalue()
    assert "2/2" in text.getvalue()  # the end fills the bar
