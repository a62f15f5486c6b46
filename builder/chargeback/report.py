"""The chargeback report: who used what, made how, at what price."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.chargeback.integrity import Integrity, check_integrity
from builder.chargeback.prices import TOKEN_TYPES, Prices, plain
from builder.chargeback.usage import Group, Usage, sum_folder
from builder.errors import LedgerError
from builder.spec.pipeline import PipelineSpec


@dataclass(frozen=True)
class Row:
    """Usage of a tenant on a UTC day, by how it was decoded."""

    day: str
    tenant: str
    optimisation: str
    usage: Usage


@dataclass(frozen=True)
class Report:
    pipeline: str
    owner: str
    currency: str
    prices: Prices
    first_day: str
    last_day: str
    rows: tuple[Row, ...]  # by day, tenant, optimisation
    integrity: Integrity

    def to_json(self) -> dict[str, Any]:
        """Costs are text, so that no reader makes floats of them."""
        return {
            "pipeline": self.pipeline,
            "owner": self.owner,
            "currency": self.currency,
            "per_million_tokens": {kind: plain(price) for kind, price in self.prices.of.items()},
            "rejected_drafts_paid_by": self.prices.payer_of_rejected_drafts,
            "from": self.first_day,
            "to": self.last_day,
            "rows": [{**self._keys(row), **self._figures(row.usage)} for row in self.rows],
            "by_tenant": self._by("tenant", lambda row: row.tenant),
            "by_optimisation": self._by("optimisation", lambda row: row.optimisation),
            "total": self._figures(total(row.usage for row in self.rows)),
            "integrity": asdict(self.integrity),
        }

    def to_csv(self) -> str:
        """One line a row, costs by token type."""
        lines = [{**self._keys(row), **_flat(self._figures(row.usage)), "currency": self.currency} for row in self.rows]
        header = list(lines[0]) if lines else ["day", "tenant", "optimisation"]
        text = io.StringIO()
        writer = csv.DictWriter(text, header, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def _by(self, name: str, key: Callable[[Row], str]) -> list[dict[str, Any]]:
        values = sorted({key(row) for row in self.rows})
        return [{name: value, **self._figures(total(row.usage for row in self.rows if key(row) == value))} for value in values]

    def _keys(self, row: Row) -> dict[str, str]:
        return {"day": row.day, "tenant": row.tenant, "optimisation": row.optimisation}

    def _figures(self, usage: Usage) -> dict[str, Any]:
        """Counts, costs, and what drafting saved: target passes that plain decoding would have made."""
        passes = usage.target_passes + usage.target_passes_avoided
        return {
            **asdict(usage),
            "compute_seconds": round(usage.compute_seconds, 6),
            "passes_avoided_share": round(usage.target_passes_avoided / passes, 4) if passes else 0.0,
            "draft_rejected_share": round(usage.draft_rejected / usage.drafted, 4) if usage.drafted else 0.0,
            "cost": {kind: plain(self.prices.cost(usage, kind)) for kind in TOKEN_TYPES} | {"total": plain(self.prices.total(usage))},
        }


def make_report(spec: PipelineSpec, folder: Path, first_day: str, last_day: str) -> Report:
    """Over the ledger in `folder`, from one UTC day to another, both included. LedgerError when there is no ledger."""
    if not folder.is_dir():
        raise LedgerError(
            "there is no usage ledger", where=str(folder), mend="Serve the pipeline first, or name its repository with --repository"
        )
    groups = sum_folder(folder, first_day, last_day)
    prices = Prices.from_spec(spec.chargeback.per_million_tokens)
    owner, currency = spec.metadata.owner, spec.chargeback.currency
    return Report(spec.metadata.name, owner, currency, prices, first_day, last_day, _rows(groups), check_integrity(groups))


def total(usages: Iterable[Usage]) -> Usage:
    return sum(usages, Usage())


def _rows(groups: Iterable[Group]) -> tuple[Row, ...]:
    sums: dict[tuple[str, str, str], Usage] = {}
    for group in groups:
        if group.usage.requests:
            key = (group.day, group.tenant, group.optimisation)
            sums[key] = sums.get(key, Usage()) + group.usage
    return tuple(Row(*key, usage) for key, usage in sorted(sums.items()))


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    costs = figures["cost"]
    return {name: value for name, value in figures.items() if name != "cost"} | {f"cost_{kind}": cost for kind, cost in costs.items()}
