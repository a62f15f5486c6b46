"""The report's plots, each an SVG text without external references."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from builder.bench.report import Report
from builder.bench.speculation import Result

COLOURS = {"draft_model": "#2a6f97", "ngram": "#c8963e", "hybrid": "#6a994e", "early_exit": "#7a5195"}
NEUTRAL, MUTED = "#33373d", "#9aa0a6"
SIZE = (4.6, 3.3)  # inches
WIDE = 3.5  # inches for each further class


def plots(report: Report) -> dict[str, str]:
    """Title to SVG. Without speculative results only the roofline is drawn."""
    drawn = {"Roofline of one decode step": roofline(report)}
    if report.results:
        drawn["Speed-up against K"] = speedup_by_length(report.results)
        drawn["Predicted against measured speed-up"] = predicted_against_measured(report.results)
        drawn["Acceptance by position"] = acceptance_by_position(report.results)
    return drawn


def roofline(report: Report) -> str:
    """Attainable operations per second against operations per byte. The slope is the bandwidth of the limit pass of the same run."""
    figure, axes = panel()
    marks = {"target": ("#2a6f97", "o"), "draft": ("#bc4749", "s")}
    intensities = [roof.operations / roof.bytes_per_step for roof in report.rooflines.values()]
    reach = [min(intensities) / 3, max(intensities) * 3]
    for name, roof in report.rooflines.items():
        colour, mark = marks.get(name, (NEUTRAL, "o"))
        intensity = roof.operations / roof.bytes_per_step
        axes.plot(reach, [roof.limit_bandwidth * x / 1e9 for x in reach], color=colour, alpha=0.4, linewidth=1.2)
        label = f"{name}: {roof.bandwidth / 1e9:.1f} GB/s, {roof.limit_share:.0%} of the limit"
        axes.plot([intensity], [roof.operations / roof.step / 1e9], mark, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte read", ylabel="10⁹ operations per second")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure)


def speedup_by_length(results: Sequence[Result]) -> str:
    """Median over prompts, with quartiles; the dashed line is the prediction."""
    figure, panels = _panels(results)
    for axes, kind in panels:
        for method, mine in _by_method(results, kind):
            lengths = [result.setting.draft_tokens for result in mine]
            middle = [result.speedup.median for result in mine]
            below = [result.speedup.median - result.speedup.p25 for result in mine]
            above = [result.speedup.p75 - result.speedup.median for result in mine]
            axes.errorbar(lengths, middle, yerr=[below, above], marker="o", capsize=3, color=COLOURS[method], label=method)
            axes.plot(lengths, [result.predicted for result in mine], "--", color=COLOURS[method], alpha=0.6)
        axes.axhline(1.0, color=MUTED, linewidth=0.8)
        axes.set(title=kind, xlabel="K, drafted tokens a round", ylabel="speed-up over plain")
        axes.set_xticks(sorted({result.setting.draft_tokens for result in results}))
        axes.label_outer()
    panels[0][0].legend(frameon=False, fontsize=8)
    return svg(figure)


def predicted_against_measured(results: Sequence[Result]) -> str:
    figure, axes = panel()
    high = 1.1 * max(max(result.speedup.median, result.predicted) for result in results)
    axes.plot([0, high], [0, high], color=MUTED, linewidth=0.8)
    axes.fill_between([0, high], [0, 0.9 * high], [0, 1.1 * high], color=MUTED, alpha=0.18, linewidth=0, label="within 10 %")
    for method, mine in _by_method(results):
        axes.plot([r.speedup.median for r in mine], [r.predicted for r in mine], "o", color=COLOURS[method], label=method, alpha=0.8)
    axes.set(xlim=(0, high), ylim=(0, high), xlabel="measured speed-up", ylabel="predicted speed-up")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure)


def acceptance_by_position(results: Sequence[Result]) -> str:
    """At the largest K: share of the rounds that drafted so far and kept the token and all before it."""
    figure, panels = _panels(results)
    longest = max(result.setting.draft_tokens for result in results)
    for axes, kind in panels:
        for method, mine in _by_method(results, kind):
            kept = next((result.by_position for result in mine if result.setting.draft_tokens == longest), [])
            axes.plot(range(1, len(kept) + 1), kept, marker="o", color=COLOURS[method], label=method)
        axes.set(title=f"{kind}, K={longest}", xlabel="position in the draft", ylabel="kept", ylim=(0, 1.02))
        axes.set_xticks(range(1, longest + 1))
        axes.label_outer()
    panels[0][0].legend(frameon=False, fontsize=8)
    return svg(figure)


def _by_method(results: Sequence[Result], kind: str | None = None) -> Iterator[tuple[str, list[Result]]]:
    for method in COLOURS:
        mine = [result for result in results if result.setting.method == method and kind in (None, result.kind)]
        if mine:
            yield method, mine


def panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    _quiet(axes)
    return figure, axes


def _panels(results: Sequence[Result]) -> tuple[Figure, list[tuple[Axes, str]]]:
    """One for each class, side by side on one scale."""
    kinds = list(dict.fromkeys(result.kind for result in results))
    figure = Figure(figsize=(SIZE[0] + WIDE * (len(kinds) - 1), SIZE[1]), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes in panels:
        _quiet(axes)
    return figure, list(zip(panels, kinds, strict=True))


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def svg(figure: Figure) -> str:
    """Without the XML head and metadata, so that it can stand inside a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
