"""Write ops/haproxy/haproxy.cfg: the configuration of `builder front` with example addresses, for a HAProxy of one's own."""

from __future__ import annotations

import sys
from pathlib import Path

from builder.serve.control import ModelControl
from builder.serve.front import configuration

EXAMPLE_SERVERS = [ModelControl("10.0.0.11", 8000, 8001), ModelControl("10.0.0.12", 8000, 8001)]
SOCKET, SHARE = "/run/haproxy/admin.sock", "/etc/haproxy/share.map"


def example() -> str:
    """Two servers of the pipeline smollm2; the version that is tried is served at port 8010 and 8011 of HAProxy's own machine."""
    candidate, ports = {"http": 8010, "grpc": 8011}, {"http": 8000, "grpc": 8001}
    return configuration("smollm2", EXAMPLE_SERVERS, candidate, ports, "0.0.0.0", SOCKET, SHARE)  # noqa: S104 - a load balancer listens


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(example(), encoding="utf-8")
