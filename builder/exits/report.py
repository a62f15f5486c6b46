"""The calibration's report: report.json, and report.html with agreement and reliability drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from builder.bench.plots import MUTED, panel, svg
from builder.bench.report_folder import save
from builder.bench.tables import Table

BEFORE, AFTER = "#bc4749", "#2a6f97"


def write_report(pipeline: str, found: dict[str, Any], folder: Path) -> Path:
    """`found` is calibration.json. TandemError when the folder cannot be written."""
    loaders = [jinja2.PackageLoader("builder.exits", "."), jinja2.PackageLoader("builder.bench", ".")]
    environment = jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=True, undefined=jinja2.StrictUndefined)
    plots = {"Agreement with the full model": agreement(found), f"Reliability of the {found['measure']}": reliability(found)}
    page = environment.get_template("report.html.jinja").render(
        pipeline=pipeline,
        found=found,
        drafts=drafting_sentence(found),
        tables=[layers_table(found)],
        plots={title: Markup(plot) for title, plot in plots.items()},  # noqa: S704 - made by our own plots
    )
    return save(folder, page, report=found)


def drafting_sentence(found: dict[str, Any]) -> str:
    """What drafts that are all verified would come to, by calibration.json: those of the exit that drafts best, or of the draft model."""
    if "speculation" in found:
        return (
            f"The same drafts, all verified: {found['speculation']['predicted_speedup']:.2f}x by weights read, "
            f"{found['speculation']['draft_tokens']} tokens a round, on the same answers. That changes no token."
        )
    draft = found["draft"]
    return (
        f"Mode draft: the exit after layer {draft['layer']} drafts where it is {draft['threshold']:.2f} sure or more, and "
        f"{draft['kept'] / max(1, draft['drafted']):.0%} of its tokens are kept: {draft['predicted_speedup']:.2f}x by weights read, on "
        "held-out answers. It changes no token."
    )


def layers_table(found: dict[str, Any]) -> Table:
    measures = list(found["layers"][0]["auroc"])
    columns = ("layer", "agreement before", "after", *(f"AUROC {measure}" for measure in measures), "threshold", "tokens that leave")
    rows = []
    for entry in found["layers"]:
        threshold = "none" if entry["threshold"] is None else f"{entry['threshold']:.4f}"
        areas = (f"{entry['auroc'][measure]:.3f}" for measure in measures)
        agreement = f"{entry['agreement_before']:.1%}", f"{entry['agreement_after']:.1%}"
        rows.append((str(entry["layer"]), *agreement, *areas, threshold, f"{entry['exit_share']:.1%}"))
    note = "Agreement and shares on held-out answers; AUROC on those the measure was chosen by."
    return Table("Exit layers", columns, tuple(rows), 1, note)


def agreement(found: dict[str, Any]) -> str:
    """Share of held-out tokens that are the full model's, before and after training."""
    figure, axes = panel()
    layers = [entry["layer"] for entry in found["layers"]]
    for name, colour in (("before", BEFORE), ("after", AFTER)):
        axes.plot(layers, [entry[f"agreement_{name}"] for entry in found["layers"]], marker="o", color=colour, label=f"{name} training")
    axes.set(xlabel=f"layer of {found['depth']}", ylabel="agreement", ylim=(0, 1))
    axes.set_xticks(layers)
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def reliability(found: dict[str, Any]) -> str:
    """Share of right tokens in each tenth of the held-out rows, by their mean confidence."""
    figure, axes = panel()
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8)
    for entry, points in zip(found["layers"], found["reliability"], strict=True):
        confidence, right = [point["confidence"] for point in points], [point["right"] for point in points]
        axes.plot(confidence, right, marker="o", label=f"layer {entry['layer']}")
    axes.set(xlabel=found["measure"], ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)
