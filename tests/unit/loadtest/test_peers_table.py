"""Ratios, merged runs and the table."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.peers.table import markdown, merged_runs, with_ratios


def _entry(peer: str, mode: str, tok_s: float, **more: Any) -> dict[str, Any]:
    return {"peer": peer, "mode": mode, "precision": "bf16", "tok_s": tok_s, "ttft_ms": 12.0, "prompt_tok_s": 800.0} | more


FAILED = {"peer": "openvino", "mode": "ngram", "error": "it took longer than 1800 s"}


def test_plain_is_compared_with_plain_and_speculation_with_speculation() -> None:
    entries = [_entry("a", "plain", 50.0), _entry("a", "speculative", 40.0), _entry("a", "ngram", 80.0), FAILED]
    merged = with_ratios(entries, plain_tok_s=100.0, speculative_tok_s=200.0)
    assert [entry.get("ours_over_peer") for entry in merged] == [2.0, 5.0, 2.5, None]
    assert [entry.get("speculative_over_peer") for entry in merged] == [4.0, 5.0, 2.5, None]
    assert merged[3] == FAILED


def test_the_entries_given_are_not_changed() -> None:
    entry = _entry("a", "plain", 50.0)
    with_ratios([entry], 1.0, 1.0)
    assert "ours_over_peer" not in entry


@pytest.mark.parametrize(("rates", "expected"), [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0], 1.0), ([7.0], 7.0)])
def test_several_runs_merge_into_the_one_with_the_median_rate(rates: list[float], expected: float) -> None:
    (merged,) = merged_runs([[_entry("a", "plain", rate)] for rate in rates])
    assert merged["tok_s"] == expected


def test_a_run_that_failed_counts_only_when_all_failed() -> None:
    ran = _entry("openvino", "ngram", 9.0)
    assert merged_runs([[FAILED], [ran]]) == [ran]
    assert merged_runs([[FAILED], [FAILED]]) == [FAILED]


def test_the_table_has_the_fastest_first_and_says_what_did_not_run() -> None:
    text = markdown(
        [_entry("slow", "plain", 9.876, acceptance_length=None), FAILED, _entry("fast", "ngram", 120.4, acceptance_length=2.346)]
    )
    lines = text.splitlines()
    assert lines[2] == "| fast | ngram | bf16 | 120 | 12 | 800 | 2.35 |"
    assert lines[3] == "| slow | plain | bf16 | 9.88 | 12 | 800 | – |"
    assert lines[4] == "openvino ngram did not run: it took longer than 1800 s"
