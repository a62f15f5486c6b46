"""Three counts of the same tokens must agree: the ledger's, the server's counters', and the clients'.

The counters of a server start at 0 with its process, and `ledger_writer` names the files that this process writes. So they
are compared with all of the writer's records, and nothing else.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeInt, ValidationError

from builder.chargeback.prices import TOKEN_TYPES
from builder.chargeback.usage import Group, segment_files, sum_folder, sum_segments
from builder.errors import LedgerError
from builder.telemetry import catalogue
from builder.telemetry.scrape import Scrape

Counts = Mapping[str, int]  # by what is counted: "tokens search output speculative"


@dataclass(frozen=True)
class Difference:
    what: str
    ledger: int
    other: int


@dataclass(frozen=True)
class Reconciliation:
    """`other` is where the second count comes from: counters or clients."""

    other: str
    compared: int
    differences: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        differences = [{"what": d.what, "ledger": d.ledger, self.other: d.other} for d in self.differences]
        return {"with": self.other, "compared": self.compared, "agrees": self.agrees, "differences": differences}


class ClientTenant(BaseModel):
    """What the clients of one tenant saw in the `usage` of their answers. `input` leaves out cached_input."""

    model_config = ConfigDict(extra="forbid", strict=True)
    requests: NonNegativeInt
    input: NonNegativeInt
    cached_input: NonNegativeInt
    output: NonNegativeInt


class ClientCounts(BaseModel):
    """A load test's own count: all requests that ended between two times, and by tenant what they used."""

    model_config = ConfigDict(extra="forbid")
    since: AwareDatetime
    until: AwareDatetime
    tenants: dict[str, ClientTenant]


def with_counters(folder: Path, scraped: Scrape, pipeline: str) -> Reconciliation:
    """Tokens by tenant, type and optimisation, and finished requests by tenant, of the running server."""
    running = {(s.labels["version"], s.labels["writer"]) for s in scraped.series(catalogue.LEDGER_WRITER.name, model=pipeline)}
    groups = [group for group in sum_folder(folder) if group.usage.requests and (group.version, group.writer) in running]
    return _compare("counters", _ledger_counts(groups), _counter_counts(scraped, pipeline))


def with_clients(folder: Path, clients: ClientCounts) -> Reconciliation:
    since, until = (moment.astimezone(UTC).isoformat(timespec="milliseconds") for moment in (clients.since, clients.until))
    files = segment_files(folder, since[:10], until[:10])
    ledger: dict[str, int] = defaultdict(int)
    for group in sum_segments(files, since, until):
        for name in ClientTenant.model_fields:
            ledger[f"{name} {group.tenant}"] += getattr(group.usage, name)
    seen = {f"{name} {tenant}": getattr(counts, name) for tenant, counts in clients.tenants.items() for name in ClientTenant.model_fields}
    return _compare("clients", ledger, seen)


def read_client_counts(path: Path) -> ClientCounts:
    """LedgerError when the file cannot be read or is of another shape."""
    try:
        return ClientCounts.model_validate_json(path.read_bytes())
    except OSError as error:
        raise LedgerError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        example = json.dumps(
            {
                "since": "2026-01-31T10:00:00Z",
                "until": "2026-01-31T10:05:00Z",
                "tenants": {"T": dict.fromkeys(ClientTenant.model_fields, 0)},
            }
        )
        raise LedgerError(f"{place}: {first['msg']}", where=str(path), mend=f"Its shape is {example}") from error


def _ledger_counts(groups: Iterable[Group]) -> Counts:
    counts: dict[str, int] = defaultdict(int)
    for group in groups:
        counts[f"requests {group.tenant} {group.optimisation}"] += group.usage.requests
        for kind in TOKEN_TYPES:
            counts[f"tokens {group.tenant} {kind} {group.optimisation}"] += getattr(group.usage, kind)
    return counts


def _counter_counts(scraped: Scrape, pipeline: str) -> Counts:
    counts: dict[str, int] = defaultdict(int)
    for sample in scraped.series(catalogue.FINISHED_REQUESTS.name, model=pipeline):
        counts[f"requests {sample.labels['tenant']} {sample.labels['optimisation']}"] += round(sample.value)
    for sample in scraped.series(catalogue.TOKENS.name, model=pipeline):
        labels = sample.labels
        counts[f"tokens {labels['tenant']} {labels['token_type']} {labels['optimisation']}"] += round(sample.value)
    return counts


def _compare(other: str, ledger: Counts, counted: Counts) -> Reconciliation:
    names = sorted(ledger.keys() | counted.keys())
    pairs = [Difference(name, ledger.get(name, 0), counted.get(name, 0)) for name in names]
    return Reconciliation(other, len(names), tuple(pair for pair in pairs if pair.ledger != pair.other))
