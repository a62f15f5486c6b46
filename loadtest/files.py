"""report.json, report.html and clients.json in a folder."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from builder.bench.report_folder import save
from loadtest.plots import plots
from loadtest.report import Report
from loadtest.tables import NOTE, check_rows, measure_rows, server_rows, tenant_rows


def write_report(report: Report, folder: Path) -> Path:
    """Write the files into `folder` and return the HTML's path. TandemError when they cannot be written."""
    return save(folder, render(report), report=report.to_json(), clients=report.clients)


def render(report: Report) -> str:
    """One page that needs nothing else: styles and plots are inside."""
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("loadtest", "."), jinja2.PackageLoader("builder.bench", ".")])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    drawn = {title: Markup(svg) for title, svg in plots(report).items()}  # noqa: S704 - made by our own plots
    return environment.get_template("loadtest.html.jinja").render(
        report=report,
        plots=drawn,
        measures=measure_rows(report),
        checks=check_rows(report),
        tenants=tenant_rows(report),
        told=server_rows(report),
        note=NOTE,
    )
