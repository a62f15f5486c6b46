"""The report's plots, each an SVG text without external references."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.report import Report
from loadtest.sample import Sample
from loadtest.summary import tokens_per_second
from loadtest.timetable import PLAIN, SERVED, SPECULATIVE

COLOURS = {PLAIN: "#9aa0a6", SPECULATIVE: "#2a6f97", SERVED: "#2a6f97"}
BAD = "#bc4749"
SIZE = (4.6, 3.3)  # inches

Latency = Callable[[Sample], float | None]


def plots(report: Report) -> dict[str, str]:
    slo = report.slo
    measures: tuple[tuple[str, Latency, float], ...] = (
        ("Time to first token", lambda s: s.ttft, slo.ttft_p95),
        ("Inter-token latency, mean of a request", lambda s: s.inter_token, slo.inter_token_p95),
        ("End-to-end latency", lambda s: s.e2e, slo.e2e_p95),
    )
    drawn = {}
    for title, measure, limit in measures:
        values = [
            (arm, [v for s in report.samples if s.arm == arm and s.complete and (v := measure(s)) is not None]) for arm in report.arms
        ]
        if any(found for _, found in values):
            drawn[title] = distribution(values, limit)
    drawn["Tokens per second by block"] = throughput(report)
    drawn["Latency over the run"] = over_time(report)
    return drawn


def _values(report: Report, arm: str, measure: Latency) -> list[float]:
    return [value for sample in report.samples if sample.arm == arm and sample.complete and (value := measure(sample)) is not None]


def distribution(values: Sequence[tuple[str, Sequence[float]]], limit: float) -> str:
    """Share of requests at or below each latency. The red lines are the promise: 95 % within it."""
    figure, axes = _panel()
    for arm, found in values:
        ordered = sorted(found)
        shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
        axes.step([value * 1e3 for value in ordered], shares, where="post", color=COLOURS[arm], label=arm)
    axes.axhline(0.95, color=BAD, linewidth=0.7, alpha=0.6)
    reach = max((max(found) for _, found in values if found), default=limit)
    if limit <= 3 * reach:  # a promise far above all latencies would squeeze them into a corner
        axes.axvline(limit * 1e3, color=BAD, linewidth=0.9, linestyle="--", label="promised p95")
    axes.set(xlabel="milliseconds", ylabel="share of requests", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return _svg(figure)


def throughput(report: Report) -> str:
    figure, axes = _panel()
    counted = [block for block in report.plan.blocks if block.counted]
    for arm in report.arms:
        mine = [(place, block) for place, block in enumerate(counted, 1) if block.arm == arm]
        heights = [tokens_per_second(report.samples, block) for _, block in mine]
        axes.bar([place for place, _ in mine], heights, color=COLOURS[arm], label=arm)
    axes.set(xlabel="block", ylabel="tokens per second")
    axes.set_xticks(range(1, len(counted) + 1))
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def over_time(report: Report) -> str:
    """Each request at the time it was due; crosses are failures."""
    figure, axes = _panel()
    starts, start = {}, 0.0
    for block in report.plan.blocks:
        if block.counted:
            starts[block.number] = start
            start += block.seconds
    for arm, kind, mark in _points(report):
        points = [s for s in report.samples if s.arm == arm and (s.complete if kind == "done" else s.outcome == "failed")]
        colour = COLOURS[arm] if kind == "done" else BAD
        label = arm if kind == "done" else None
        axes.plot([starts[s.block] + s.due for s in points], [s.e2e for s in points], mark, color=colour, markersize=3.5, label=label)
    axes.set(xlabel="seconds", ylabel="end-to-end, seconds")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def _points(report: Report) -> Iterator[tuple[str, str, str]]:
    for arm in report.arms:
        yield arm, "done", "o"
        yield arm, "failed", "x"


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _svg(figure: Figure) -> str:
    """Without the XML head and metadata, so that it can stand inside a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
