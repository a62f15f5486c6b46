"""report.json and report.html in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
from markupsafe import Markup

from builder.errors import TandemError
from builder.files import write_atomically
from builder.quality.baseline import REPORT
from builder.quality.plots import plots
from builder.quality.report import Report

PAGE = "report.html"


def write_report(report: Report, folder: Path) -> Path:
    """Write both files into `folder` (created) and return the HTML's path. TandemError when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / REPORT, json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
        write_atomically(folder / PAGE, render(report))
    except OSError as error:
        what = f"the report cannot be written ({error.strerror})"
        raise TandemError(what, where=str(folder), mend="Free space, mend permissions, or name another folder with --report") from error
    return folder / PAGE


def render(report: Report) -> str:
    """One page that needs nothing else: styles and plots are inside."""
    loader = jinja2.PackageLoader("builder.quality", ".")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    drawn = {title: Markup(text) for title, text in plots(report).items()}  # noqa: S704 - made by our own plots
    return environment.get_template("report.html.jinja").render(report=report, plots=drawn)
