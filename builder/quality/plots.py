"""The report's plots, each an SVG text without external references."""

from __future__ import annotations

from builder.bench.plots import MUTED, NEUTRAL, panel, svg
from builder.quality.distribution import PositionTest
from builder.quality.report import Report

PLAIN, OPTIMISED, CONTROL = "#2a6f97", "#6a994e", "#bc4749"


def plots(report: Report) -> dict[str, str]:
    """Title to SVG."""
    drawn = {"Task success by suite": success(report), "Length of the answers": lengths(report)}
    if report.distribution.tests:
        drawn["Distributions: total variation"] = variation(report)
    return drawn


def success(report: Report) -> str:
    figure, axes = panel()
    arms = (("plain", report.plain, PLAIN), ("as served", report.optimised, OPTIMISED))
    for shift, (name, arm, colour) in zip((-0.19, 0.19), arms, strict=True):
        found = arm.by_suite(report.cases)
        axes.bar([place + shift for place in range(len(found))], list(found.values()), width=0.36, color=colour, label=name)
        axes.set_xticks(range(len(found)), list(found))
    axes.set(ylabel="share of right answers", ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def lengths(report: Report) -> str:
    """A point a prompt: on the diagonal where both answers are equally long."""
    figure, axes = panel()
    plain, other = ([len(answer.token_ids) for answer in arm.answers] for arm in (report.plain, report.optimised))
    high = 1.05 * max([1, *plain, *other])
    axes.plot([0, high], [0, high], color=MUTED, linewidth=0.8)
    axes.plot(plain, other, "o", color=OPTIMISED, alpha=0.6)
    axes.set(xlabel="tokens, plain", ylabel="tokens, as served", xlim=(0, high), ylim=(0, high))
    return svg(figure)


def variation(report: Report) -> str:
    """Measured against what chance gives; the broken rule stands out where the tests have power."""
    figure, axes = panel()
    groups: tuple[tuple[str, tuple[PositionTest, ...], str], ...] = (
        ("as served", report.distribution.tests, OPTIMISED),
        ("broken rule", report.distribution.control, CONTROL),
    )
    high = 1.05 * max(max(test.total_variation, test.expected_variation) for _, tests, _ in groups for test in tests) or 1.0
    axes.plot([0, high], [0, high], color=MUTED, linewidth=0.8)
    for name, tests, colour in groups:
        axes.plot([t.expected_variation for t in tests], [t.total_variation for t in tests], "o", color=colour, alpha=0.75, label=name)
    axes.set(xlabel="total variation by chance", ylabel="total variation measured", xlim=(0, high), ylim=(0, high))
    axes.legend(frameon=False, fontsize=8, labelcolor=NEUTRAL)
    return svg(figure)
