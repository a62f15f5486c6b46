"""Our numbers beside the peers': ratios to merge into the bench report, and a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
_COLUMNS = ("peer", "mode", "precision", "tok_s", "ttft_ms", "prompt_tok_s", "acceptance_length")
_OURS_BY_PEER_MODE = {"plain": "plain", "speculative": "speculative", "ngram": "speculative"}


def measured(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that have numbers."""
    return [entry for entry in entries if "error" not in entry]


def with_ratios(entries: Sequence[Entry], plain_tok_s: float, speculative_tok_s: float) -> list[dict[str, Any]]:
    """Each entry with `ours_over_peer`: our plain rate over a plain peer, our speculative rate over any of its speculation.

    `speculative_over_peer` is our speculative rate over every entry: what a user gains who switches. Entries with an error are kept.
    """
    ours = {"plain": plain_tok_s, "speculative": speculative_tok_s}
    return [
        dict(entry)
        if "error" in entry
        else dict(entry)
        | {
            "ours_over_peer": ours[_OURS_BY_PEER_MODE[entry["mode"]]] / entry["tok_s"],
            "speculative_over_peer": speculative_tok_s / entry["tok_s"],
        }
        for entry in entries
    ]


def merged_runs(runs: Sequence[Sequence[Entry]]) -> list[dict[str, Any]]:
    """One list from several runs of the same peers (the bench alternates with its own): the run with the median `tok_s` of each."""
    by_key: dict[tuple[str, str], list[Entry]] = {}
    for entry in (entry for run in runs for entry in run):
        by_key.setdefault((entry["peer"], entry["mode"]), []).append(entry)
    return [_median_entry(group) for group in by_key.values()]


def _median_entry(group: Sequence[Entry]) -> dict[str, Any]:
    """The entry whose rate is the (lower) median of those that ran; the error when none did."""
    ran = sorted(measured(group), key=lambda entry: float(entry["tok_s"]))
    return dict(ran[(len(ran) - 1) // 2] if ran else group[0])


def markdown(entries: Sequence[Entry]) -> str:
    """A table of the measured entries, fastest first, and a line for each that could not run."""
    rows = sorted(measured(entries), key=lambda entry: -float(entry["tok_s"]))
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    lines += ["| " + " | ".join(_cell(entry.get(column)) for column in _COLUMNS) + " |" for entry in rows]
    lines += [f"{entry['peer']} {entry['mode']} did not run: {entry['error']}" for entry in entries if "error" in entry]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) and value < 10 else f"{value:.0f}" if isinstance(value, float) else str(value)
