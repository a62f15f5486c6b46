"""The server's metrics, as a drill watches them."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from builder.decoding.control import State
from builder.errors import ServeError
from builder.spec.addresses import reachable
from builder.telemetry import catalogue
from builder.telemetry.catalogue import Metric

PERIOD = 0.05  # seconds between two looks


@dataclass(frozen=True)
class Metrics:
    """Of one pipeline on one server. Versions are summed: a drill has one."""

    host: str
    port: int
    pipeline: str

    def value(self, metric: Metric, **labels: str) -> float:
        """Sum of the series with these labels. ServeError when the server does not answer."""
        # the parser gives every counter the suffix that OpenMetrics wants; Triton prints none
        total = 0.0
        for family in text_string_to_metric_families(self._text()):
            for sample in family.samples:
                found = sample.labels
                wanted = {"model": self.pipeline, **labels}
                if sample.name.removesuffix("_total") == metric.name and wanted.items() <= found.items():
                    total += sample.value
        return total

    def state(self) -> State | None:
        """None before the control has reported."""
        return next((state for state in State if self.value(catalogue.STATE, state=state)), None)

    def wait(self, condition: Callable[[], bool], seconds: float) -> float | None:
        """Seconds until it held; None if it did not in time."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                return None
            time.sleep(PERIOD)
        return time.monotonic() - began

    def _text(self) -> str:
        connection = http.client.HTTPConnection(reachable(self.host), self.port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode("utf-8")
        except (OSError, http.client.HTTPException) as error:
            raise ServeError(f"no metrics ({error})", where=f"{self.host}:{self.port}", mend="Start it with `builder serve`") from error
        finally:
            connection.close()
