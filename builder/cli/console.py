"""Where the command line writes: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from builder.errors import TandemError
from builder.plan.finding import Finding

out = Console(highlight=False)  # tables and texts that are the result
err = Console(stderr=True, highlight=False)  # progress, notes, errors


def print_json(value: Any) -> None:
    """One JSON document on stdout, without rich: no wrapping, no colour."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_error(error: TandemError) -> None:
    """One paragraph on stderr. `soft_wrap`: a log keeps it on its own lines; no markup: a path may hold brackets."""
    err.print("[bold red]Error:[/] ", end="")
    err.print(error.paragraph(), markup=False, soft_wrap=True)


def findings_table(findings: Iterable[Finding]) -> Table:
    """One row for each finding, the mend after those that said no."""
    table = Table("", "check", box=None, pad_edge=False)
    table.add_column("finding", overflow="fold")  # a path that ends in … cannot be copied
    for finding in findings:
        mark, mend = ("[green]ok[/]", "") if finding.ok else ("[red]no[/]", f". [bold]{escape(str(finding.mend))}.[/]")
        table.add_row(mark, finding.id, escape(finding.message) + mend)
    return table
