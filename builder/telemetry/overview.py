"""What a running server did between two scrapes, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.spec.slo import Slo
from builder.telemetry import catalogue
from builder.telemetry.catalogue import Metric
from builder.telemetry.quantile import difference, quantile
from builder.telemetry.scrape import Scrape, gained
from builder.telemetry.slo import HISTOGRAMS, P95


@dataclass(frozen=True)
class Overview:
    """Rates a second over `seconds`; None where there was nothing to take a ratio or a percentile of."""

    seconds: float
    state: str | None  # now, of the control of drafts
    draft_length: float | None  # K now; None from a server that has not told
    acceptance_rate: float | None
    acceptance_length: float | None
    accepted_by_position: tuple[float, ...]  # share of the drafts whose token at that place was accepted
    output_tokens: Mapping[str, float]  # a second, by tenant
    p95: Mapping[str, float | None]  # seconds, by key of `slo`
    objectives: Mapping[str, float]
    requests: Mapping[str, float]  # now: running, waiting
    kv_blocks: Mapping[str, float]  # now: used, cached, free
    flags: Mapping[str, float]


def overview(older: Scrape, newer: Scrape, seconds: float, pipeline: str, slo: Slo) -> Overview:
    def added(metric: Metric, **labels: str) -> float:
        return gained(*(page.total(metric.name, model=pipeline, **labels) for page in (newer, older)))

    def now(metric: Metric, label: str) -> dict[str, float]:
        names = {sample.labels[label] for sample in newer.series(metric.name, model=pipeline)}
        return {name: newer.total(metric.name, model=pipeline, **{label: name}) for name in sorted(names)}

    def p95_of(metric: Metric) -> float | None:
        return quantile(P95, difference(newer.buckets(metric.name, model=pipeline), older.buckets(metric.name, model=pipeline)))

    drafts, drafted, accepted = (added(m) for m in (catalogue.DRAFTS, catalogue.DRAFT_TOKENS, catalogue.ACCEPTED_TOKENS))
    positions = sorted(now(catalogue.ACCEPTED_PER_POSITION, "position"), key=int)
    return Overview(
        seconds=seconds,
        state=next((name for name, on in now(catalogue.STATE, "state").items() if on), None),
        draft_length=newer.total(catalogue.DRAFT_LENGTH.name, model=pipeline)
        if newer.series(catalogue.DRAFT_LENGTH.name, model=pipeline)
        else None,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=1 + accepted / drafts if drafts else None,
        accepted_by_position=tuple(added(catalogue.ACCEPTED_PER_POSITION, position=p) / drafts for p in positions) if drafts else (),
        output_tokens={
            t: added(catalogue.TOKENS, tenant=t, token_type="output") / seconds  # noqa: S106 - no password
            for t in now(catalogue.TOKENS, "tenant")
        },
        p95={key: p95_of(metric) for key, metric in HISTOGRAMS.items()},
        objectives={key: getattr(slo, key) for key in HISTOGRAMS},
        requests=now(catalogue.REQUESTS, "state"),
        kv_blocks=now(catalogue.KV_BLOCKS, "state"),
        flags=now(catalogue.FLAG, "name"),
    )
