"""What a metrics port prints, read with the Prometheus client's own parser."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from builder.errors import ServeError

TIMEOUT = 5.0  # seconds


@dataclass(frozen=True)
class Sample:
    """One series. Counters have no `_total` at the end (the parser adds it where there is none); histograms are _bucket, _sum, _count."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    samples: tuple[Sample, ...]

    def series(self, name: str, /, **labels: str) -> list[Sample]:
        """Those of a name that carry all these labels."""
        wanted = labels.items()
        return [sample for sample in self.samples if sample.name == name and wanted <= sample.labels.items()]

    def total(self, name: str, /, **labels: str) -> float:
        return sum(sample.value for sample in self.series(name, **labels))

    def buckets(self, name: str, /, **labels: str) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound, added up over its series."""
        sums: dict[float, float] = {}
        for sample in self.series(f"{name}_bucket", **labels):
            bound = float(sample.labels["le"])
            sums[bound] = sums.get(bound, 0.0) + sample.value
        return dict(sorted(sums.items()))


def gained(now: float, before: float) -> float:
    """Of a counter between two readings. One that fell belongs to a server that started again: then all that it has is new."""
    return now - before if now >= before else now


def parse(text: str) -> Scrape:
    """ValueError when it is not the Prometheus text format."""
    families = text_string_to_metric_families(text)
    return Scrape(
        tuple(
            Sample(sample.name.removesuffix("_total") if family.type == "counter" else sample.name, sample.labels, sample.value)
            for family in families
            for sample in family.samples
        )
    )


def scrape(url: str, timeout: float = TIMEOUT) -> Scrape:
    """ServeError when nobody answers at the URL, or with something else than metrics."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ServeError("not an http address", where=url, mend="Give one such as http://127.0.0.1:8002/metrics")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", parts.path or "/metrics")
        response = connection.getresponse()
        text = response.read().decode("utf-8")
        if response.status != http.client.OK:
            raise ServeError(f"answered with status {response.status}", where=url, mend="Name the metrics port and /metrics")
        return parse(text)
    except (OSError, http.client.HTTPException) as error:
        raise ServeError(f"the metrics cannot be read ({error})", where=url, mend="Start the server with `builder serve`") from error
    except ValueError as error:
        raise ServeError(f"answered with something else than metrics ({error})", where=url, mend="Name the metrics port") from error
    finally:
        connection.close()
