"""report.json and report.html in a folder."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from builder.bench.plots import plots
from builder.bench.report import Report
from builder.bench.report_folder import save
from builder.bench.tables import tables
from builder.repository.engine import TARGET


def write_report(report: Report, folder: Path) -> Path:
    """Write both files into `folder` (created) and return the HTML's path. TandemError when it cannot be written."""
    return save(folder, render(report), report=report.to_json())


def render(report: Report) -> str:
    """One page that needs nothing else: styles and plots are inside."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("builder.bench", "."), autoescape=True, undefined=jinja2.StrictUndefined)
    drawn = {title: Markup(svg) for title, svg in plots(report).items()}  # noqa: S704 - made by our own plots
    template = environment.get_template("report.html.jinja")
    return template.render(report=report, plots=drawn, tables=tables(report), tiles=tiles(report))


def tiles(report: Report) -> list[tuple[str, str, str]]:
    """The numbers to see first: value, name, and "good" or "bad" where there is a verdict."""
    identity = report.identity.fraction
    shown = [
        (f"{report.plain.median:.1f}", "plain tokens/s", ""),
        (f"{report.rooflines[TARGET].limit_share:.0%}", "of the limit reached", ""),
        (f"{identity:.0%}" if identity == 1.0 else f"{identity:.2%}", "answers identical to plain", "good" if identity == 1.0 else "bad"),
    ]
    shown += [(f"{speedup:.2f}x", f"{setting.method} at K={setting.draft_tokens}", "") for setting, speedup in report.headline.values()]
    if report.best is not None:
        shown.append((str(report.best.draft_tokens), "recommended K", ""))
        shown.append((f"{100 * report.prediction_error:.1f} %", "median error of the prediction", ""))
    if report.triton is not None:
        shown.append((f"{report.triton.share.median:.2f}", "kept through Triton", ""))
    return shown
