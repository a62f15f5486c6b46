"""The clients' own count of tokens by tenant: what the usage ledger is reconciled with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from loadtest.sample import Sample


def client_counts(samples: Iterable[Sample], label: Callable[[str], str], since: datetime, until: datetime) -> dict[str, Any]:
    """clients.json: every request that the server counted and told the client of, warm-up included. `label` gives a tenant's name in
    the ledger."""
    tenants: dict[str, dict[str, int]] = {}
    for sample in samples:
        if sample.known:
            mine = tenants.setdefault(label(sample.tenant), dict.fromkeys(("requests", "input", "cached_input", "output"), 0))
            mine["requests"] += 1
            mine["input"] += sample.prompt_tokens - sample.cached_tokens
            mine["cached_input"] += sample.cached_tokens
            mine["output"] += sample.tokens
    return {"since": _stamp(since), "until": _stamp(until), "tenants": dict(sorted(tenants.items()))}


def outcome_counts(samples: Iterable[Sample]) -> dict[str, Any]:
    """How all requests ended. `uncounted`: the client left or lost the connection and knows no usage, so a ledger may hold more."""
    found = list(samples)
    outcomes = {name: sum(s.outcome == name for s in found) for name in ("done", "cancelled", "left", "refused", "failed")}
    uncounted = sum(not s.known and s.outcome in ("left", "failed") for s in found)
    return {"requests": len(found), **outcomes, "uncounted": uncounted}


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
