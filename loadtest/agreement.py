"""Three counts of one load: the usage ledger's, the server's counters' and the clients' own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.chargeback.place import ledger_folder
from builder.chargeback.reconcile import ClientCounts, Reconciliation, with_clients, with_counters
from builder.spec.load import LoadedPipeline
from builder.telemetry.scrape import scrape
from loadtest.ask import Target
from loadtest.counts import client_counts, outcome_counts
from loadtest.plan import Plan
from loadtest.sample import Sample, read
from loadtest.session import LOOPBACK, run_clients
from loadtest.summary import failed
from loadtest.timetable import SERVED, Block
from loadtest.workload import load_workload

ROUND_SECONDS = 60.0  # of the clients, again until all requests were made
SETTLE_SECONDS = 10.0  # for counters to be flushed, after the last answer


@dataclass(frozen=True)
class AgreementOptions:
    requests: int = 10_000
    users: int = 16
    workload: str = "reconcile"
    seed: int = 0
    raw: bool = False
    round_seconds: float = ROUND_SECONDS


@dataclass(frozen=True)
class Agreement:
    samples: tuple[Sample, ...]
    with_counters: Reconciliation
    with_clients: Reconciliation

    @property
    def passed(self) -> bool:
        """Exact, and over a load in which nothing failed that should not have: a lost connection leaves its client without a count."""
        return self.with_counters.agrees and self.with_clients.agrees and not any(failed(sample) for sample in self.samples)

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "counts": outcome_counts(self.samples),
            "tokens": sum(sample.tokens for sample in self.samples),
            "reconciliation": [self.with_counters.to_json(), self.with_clients.to_json()],
        }


def run_agreement(
    loaded: LoadedPipeline,
    repository: Path,
    ports: Mapping[str, int],  # http, grpc, metrics of a server that nobody else asks meanwhile
    options: AgreementOptions,
    folder: Path,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Agreement:
    """Ask until at least so many requests were made, then compare.

    SpecError for an unknown workload, ServeError when the clients or the server fail, LedgerError when the ledger cannot be read.
    """
    name, chargeback = loaded.spec.metadata.name, loaded.spec.chargeback
    target = Target(f"{LOOPBACK}:{ports['http']}", f"{LOOPBACK}:{ports['grpc']}", name, options.raw)
    workload = load_workload(options.workload)
    since = datetime.now(UTC)
    samples: list[Sample] = []
    while len(samples) < options.requests:
        on_progress(f"{len(samples)} of {options.requests} requests")
        number = len(samples)  # another seed in each round, so other requests
        block = Block(1, SERVED, options.round_seconds, 1)
        plan = Plan(workload, target, options.users, (block,), rate=workload.rate, seed=options.seed + number)
        run_clients(plan, folder)
        samples += read(folder / "samples.jsonl")
    until = datetime.now(UTC)
    ledger = ledger_folder(repository, name, chargeback)
    counters = _settled(ledger, f"http://{LOOPBACK}:{ports['metrics']}/metrics", name)
    counts = ClientCounts.model_validate(client_counts(samples, chargeback.label, since, until))
    return Agreement(tuple(samples), counters, with_clients(ledger, counts))


def _settled(ledger: Path, url: str, pipeline: str) -> Reconciliation:
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = with_counters(ledger, scrape(url), pipeline)
        if found.agrees or time.monotonic() > deadline:
            return found
        time.sleep(0.5)
