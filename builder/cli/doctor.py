"""`builder doctor`: does this machine have what building and serving need?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.console import findings_table, out, print_json
from builder.cli.options import Json
from builder.plan.machine import examine
from builder.spec.load import load_pipeline
from builder.spec.serving import Serving


def doctor(
    pipeline: Annotated[Path | None, typer.Argument(help="Take host, ports and thread placement from this pipeline.yaml.")] = None,
    json: Json = False,
) -> None:
    """Look for Python, PyTorch, a compiler, Triton, memory and free ports; exit 1 if something needed is missing.

    Example: `builder doctor`

    Example: `builder doctor pipelines/smollm2.yaml --json`
    """
    spec = load_pipeline(pipeline).spec if pipeline else None
    findings = examine(spec.serving if spec else Serving(), spec.engine if spec else None)
    ok = all(finding.ok for finding in findings)
    if json:
        print_json({"ok": ok, "python": sys.version.split()[0], "findings": [finding.to_json() for finding in findings]})
    else:
        out.print(findings_table(findings))
    if not ok:
        raise typer.Exit(1)
