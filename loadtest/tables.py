"""The report as rows of text: what the terminal and the HTML page both show."""

from __future__ import annotations

from loadtest.report import Report
from loadtest.summary import Arm, Quantiles

NOTE = (
    "Latencies are of whole answers and count from the moment a request was due, also when it started late. Inter-token latency is a "
    "request's mean after its first token. Requests that arrive in one piece (generate) have end-to-end latency only."
)


def measure_rows(report: Report) -> list[tuple[str, ...]]:
    """A row for each measure: its name, then its value in each arm."""
    columns = [_cells(arm) for arm in report.arms.values()]
    return [(name, *(column[name] for column in columns)) for name in columns[0]]


def _cells(arm: Arm) -> dict[str, str]:
    return {
        "requests": str(arm.requests),
        "failures": str(arm.failures),
        "tokens/s": f"{arm.tokens_per_second:.1f}",
        "time to first token, ms (p50 / p95 / p99)": _quantiles(arm.ttft, 0),
        "inter-token latency, ms": _quantiles(arm.inter_token, 1),
        "end-to-end latency, ms": _quantiles(arm.e2e, 0),
        "longest gap between chunks, ms": _quantiles(arm.longest_gap, 0),
        "started late by, ms": _quantiles(arm.late_starts, 1),
        "acceptance rate": "–" if arm.acceptance_rate is None else f"{arm.acceptance_rate:.2f}",
        "acceptance length": "–" if arm.acceptance_length is None else f"{arm.acceptance_length:.2f}",
    }


def check_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """Verdict first: "kept" or "broken"."""
    rows = []
    for check in report.checks:
        unit = " %" if check.name == "failures" else " ms"
        scale = 100 if check.name == "failures" else 1
        measured = "none" if check.measured is None else f"{check.measured * scale:.1f}{unit}"
        rows.append(("kept" if check.passed else "broken", check.name, measured, f"{check.limit * scale:g}{unit}"))
    return rows


def server_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """A p95, as the clients saw it and as the server's histograms tell it, and whether a histogram could tell it better."""
    rows = []
    for found in report.server_p95:
        verdict = "within one bucket" if found.agrees else f"{found.buckets_apart} buckets apart"
        rows.append((found.name, f"{found.client * 1e3:.0f} ms", f"{found.server * 1e3:.0f} ms", verdict))
    return rows


def tenant_rows(report: Report) -> list[tuple[str, ...]]:
    tenants = report.clients["tenants"]
    return [(name, *(str(used[key]) for key in ("requests", "input", "cached_input", "output"))) for name, used in tenants.items()]


def _quantiles(found: Quantiles, digits: int) -> str:
    return " / ".join("–" if value is None else f"{value:.{digits}f}" for value in (found.p50, found.p95, found.p99))
