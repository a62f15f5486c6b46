"""Model control of a running Triton over HTTP."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from builder.errors import CheckError, ServeError

TIMEOUT = 120.0  # seconds: a load reads weights and starts a process


@dataclass(frozen=True)
class ModelControl:
    """Implements builder.repository.server_group.Server."""

    host: str
    port: int  # HTTP
    grpc_port: int | None = None  # None: not known
    metrics_port: int | None = None

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def load(self, model: str) -> None:
        """CheckError when Triton refuses (what served goes on serving), ServeError when it cannot be reached."""
        status, body = self._post(f"/v2/repository/models/{model}/load")
        if status != http.client.OK:
            raise CheckError(f"{model} cannot be loaded ({_message(body)})", where=self.name, mend="The server's log names the cause")

    def ready_versions(self, model: str) -> list[int]:
        """Loaded versions of a model that answer. ServeError when the server cannot be reached."""
        status, body = self._post("/v2/repository/index", b'{"ready": true}')
        if status != http.client.OK:
            raise ServeError(f"does not list its models ({_message(body)})", where=self.name)
        rows: list[dict[str, Any]] = json.loads(body)
        return sorted(int(row["version"]) for row in rows if row["name"] == model and row.get("state") == "READY")

    def _post(self, path: str, body: bytes = b"{}") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServeError(f"cannot be reached ({error})", where=self.name, mend="Start it with `builder serve`") from error
        finally:
            connection.close()


def _message(body: bytes) -> str:
    """Triton's own words, on one line and not longer than a paragraph."""
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:400]}…"
