"""What the server says of itself when nobody asks it anything: no request left, all KV blocks back."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from builder.telemetry.catalogue import KV_BLOCKS, REQUESTS

POLL_SECONDS = 0.3  # the server flushes its metrics every 0.25 s


@dataclass(frozen=True)
class State:
    requests: int  # running and waiting
    used: int  # KV blocks held by requests
    cached: int  # kept for equal prompts, given up when a request needs them
    free: int

    @property
    def blocks(self) -> int:
        return self.used + self.cached + self.free


def read_state(url: str) -> State:
    """`url`: host:port of the metrics. OSError when it cannot be reached."""
    connection = http.client.HTTPConnection(url, timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8")
    finally:
        connection.close()
    found: dict[tuple[str, str], int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in (REQUESTS.name, KV_BLOCKS.name):
                key = sample.name, sample.labels["state"]
                found[key] = found.get(key, 0) + int(sample.value)
    requests = sum(found.get((REQUESTS.name, state), 0) for state in ("running", "waiting"))
    return State(requests, *(found.get((KV_BLOCKS.name, state), 0) for state in ("used", "cached", "free")))


def wait_for_rest(url: str, timeout: float) -> tuple[State, float]:
    """The state once two looks in a row found no request and no used block, and the seconds until then; the last state after `timeout`."""
    began, calm = time.monotonic(), 0
    while True:
        state, waited = read_state(url), time.monotonic() - began
        calm = calm + 1 if state.requests == 0 and state.used == 0 else 0
        if calm == 2 or waited > timeout:
            return state, waited
        time.sleep(POLL_SECONDS)
