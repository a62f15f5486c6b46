"""How the tests speak to a server: plain HTTP as curl does, and scraping its metrics."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from builder.serve.triton import Triton


def post(server: Triton, verb: str, body: dict[str, Any] | bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", f"/v2/models/{server.pipeline}/{verb}", data)
    response = connection.getresponse()
    return response.status, response.read()


def generate(server: Triton, **body: Any) -> dict[str, Any]:
    status, answer = post(server, "generate", body)
    assert status == 200, answer
    return dict(json.loads(answer))


def refused(server: Triton, body: dict[str, Any] | bytes) -> str:
    """The error text of a request that must be refused."""
    status, answer = post(server, "generate", body)
    assert status == 400, (status, answer)
    return str(json.loads(answer)["error"])


def events(server: Triton, **body: Any) -> list[dict[str, Any]]:
    """The server-sent events of generate_stream."""
    status, answer = post(server, "generate_stream", {"stream": True, **body})
    assert status == 200, answer
    return [json.loads(line.removeprefix("data: ")) for line in answer.decode().splitlines() if line.startswith("data: ")]


def metrics(server: Triton) -> dict[str, float]:
    """Series by name and labels, as written."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["metrics"], timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def total(server: Triton, name: str, /, **labels: str) -> float:
    """Sum over the series of a metric that carry these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(v for series, v in metrics(server).items() if series.partition("{")[0] == name and all(w in series for w in wanted))


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.1)


def settled(server: Triton, name: str, **labels: str) -> float:
    """`total` once earlier requests are counted: metrics are flushed a few times a second, so it must hold for a while."""
    value = total(server, name, **labels)
    while True:
        time.sleep(0.6)
        if (again := total(server, name, **labels)) == value:
            return value
        value = again
