"""Host names as they are listened on, connected to and written."""

from __future__ import annotations


def reachable(host: str) -> str:
    """An address to connect to for an address to listen on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def bracketed(host: str) -> str:
    """As it stands before a port: IPv6 in brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host else host
