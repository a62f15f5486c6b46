"""`builder exporter`: metrics of a pipeline beside those on Triton's own port."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from builder import __version__
from builder.chargeback.prices import Prices
from builder.errors import FlagError, RepositoryError, ServeError
from builder.repository.flag_store import FlagStore
from builder.repository.flags import FLAGS
from builder.repository.live import serving_version
from builder.repository.versions import newest
from builder.serve.ports import require_free
from builder.serve.processes import ProcessUse, server_processes
from builder.spec.addresses import reachable
from builder.spec.pipeline import PipelineSpec
from builder.telemetry import exporter_catalogue as catalogue
from builder.telemetry.catalogue import Metric
from builder.telemetry.scrape import Scrape, scrape
from builder.telemetry.slo import SloWindow

GPU_SERIES = "nv_gpu_utilization"

Value = tuple[Metric, tuple[str, ...], float]  # a metric, the values of its own labels, the value


class PipelineCollector(Collector):
    """Reads server, repository and flags anew at each scrape; what cannot be read has no series."""

    def __init__(
        self,
        spec: PipelineSpec,
        repository: Path,
        read: Callable[[], Scrape],
        *,
        processes: Callable[[int], list[ProcessUse]] = server_processes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._name = spec.metadata.name
        self._repository = repository
        self._read = read
        self._processes = processes
        self._clock = clock
        self._slo = SloWindow(spec.slo, self._name)

    def collect(self) -> Iterator[Family]:
        values: dict[Metric, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        for metric, labels, value in (*self._of_server(), *self._of_spec(), *self._of_repository()):
            values[metric].append((labels, value))
        return (self._family(metric, samples) for metric, samples in values.items())

    def _family(self, metric: Metric, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=("model", *metric.labels))
        for labels, value in samples:
            family.add_metric((self._name, *labels), value)
        return family

    def _of_server(self) -> Iterator[Value]:
        try:
            scraped = self._read()
        except ServeError:
            yield catalogue.TRITON_UP, (), 0
            return
        yield catalogue.TRITON_UP, (), 1
        yield catalogue.GPU, ("present" if scraped.series(GPU_SERIES) else "absent",), 1
        for key, state in self._slo.update(scraped, self._clock()).items():
            yield catalogue.SLO_OBJECTIVE, (key,), state.objective
            yield catalogue.SLO_OBSERVED, (key,), state.observed
            yield catalogue.SLO_SLOW, (key,), state.slow
            if state.p95 is not None:
                yield catalogue.SLO_P95, (key,), state.p95
                yield catalogue.SLO_MET, (key,), float(bool(state.met))
        for process in self._processes(self._spec.serving.metrics_port):
            yield catalogue.PROCESS_CPU, (process.name,), process.cpu_seconds
            yield catalogue.PROCESS_MEMORY, (process.name,), process.resident_bytes

    def _of_spec(self) -> Iterator[Value]:
        chargeback = self._spec.chargeback
        yield catalogue.PIPELINE_INFO, (self._spec.metadata.owner, __version__), 1
        for kind, price in Prices.from_spec(chargeback.per_million_tokens).of.items():
            yield catalogue.PRICE, (kind, chargeback.currency), float(price)

    def _of_repository(self) -> Iterator[Value]:
        try:
            number = newest(self._repository, self._name).number
            results = serving_version(self._repository, self._name).manifest.results
        except RepositoryError:
            return
        yield catalogue.NEWEST_VERSION, (), number
        for name, value in numbers(results):
            yield catalogue.QUALITY_RESULT, (name,), value
        try:
            flags = FlagStore(self._repository, self._name).read()
        except FlagError:
            return
        for tenant in flags.tenants:
            for flag in FLAGS:
                yield catalogue.TENANT_FLAG, (flag, tenant), flags.in_force(flag, tenant)[0]


def numbers(results: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a manifest's results by its dotted place; true is 1. Lists have too many to be labels."""
    for key, value in results.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{place}{key}.")
        elif isinstance(value, (int, float)):
            yield f"{place}{key}", float(value)


def reader(host: str, port: int) -> Callable[[], Scrape]:
    """Scrapes a server's metrics port."""
    return lambda: scrape(f"http://{host}:{port}/metrics")


@contextmanager
def exporting(spec: PipelineSpec, repository: Path, host: str, port: int) -> Iterator[None]:
    """The exporter, listening inside. ServeError when the port is taken."""
    require_free(host, {"exporter": port})
    registry = CollectorRegistry()
    registry.register(PipelineCollector(spec, repository, reader(reachable(spec.serving.host), spec.serving.metrics_port)))
    server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
