"""Triton's `generate` and `generate_stream`, on one kept connection."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from typing import Any

from loadtest.ask import Ask, Target
from loadtest.reply import Reply

TIMEOUT = 300.0  # seconds of silence after which an answer counts as failed
EVENT = b"data: "


class HttpClient:
    def __init__(self, target: Target) -> None:
        self._path = f"/v2/models/{target.model}"
        self._connection = http.client.HTTPConnection(target.http, timeout=TIMEOUT)
        self._target = target

    def ask(self, ask: Ask) -> Reply:
        reply = Reply()
        body: dict[str, Any] = {**ask.parameters, **ask.inputs, "id": ask.id}
        try:
            if ask.streams:
                self._stream(ask, body | {"stream": True}, reply)
            else:
                self._whole(body, reply)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reply.fail(f"{type(error).__name__}: {error}")
        if reply.outcome in ("failed", "left"):
            self._connection.close()  # what is left on it belongs to this answer; the next request connects anew
        return reply

    def close(self) -> None:
        self._connection.close()

    def _post(self, verb: str, body: Mapping[str, Any]) -> http.client.HTTPResponse:
        data = json.dumps(body).encode("utf-8")
        try:
            self._connection.request("POST", f"{self._path}/{verb}", data)
            return self._connection.getresponse()
        except http.client.RemoteDisconnected:  # an idle connection that the server closed; no request was read from it
            self._connection.close()
            self._connection.request("POST", f"{self._path}/{verb}", data)
            return self._connection.getresponse()

    def _whole(self, body: Mapping[str, Any], reply: Reply) -> None:
        response = self._post("generate", body)
        document = json.loads(response.read())
        if response.status == http.client.OK:
            reply.take(document)
        elif response.status < http.client.INTERNAL_SERVER_ERROR or response.status == http.client.SERVICE_UNAVAILABLE:
            reply.refuse(str(document.get("error", response.status)))
        else:
            reply.fail(f"status {response.status}: {document.get('error')}")

    def _stream(self, ask: Ask, body: Mapping[str, Any], reply: Reply) -> None:
        response = self._post("generate_stream", body)
        cancelled = False
        while line := response.readline():
            if not line.startswith(EVENT):
                if line.lstrip().startswith(b"{"):  # refused before the stream began
                    reply.refuse(str(json.loads(line).get("error", response.status)))
                continue
            document = json.loads(line.removeprefix(EVENT))
            if "error" in document:
                reply.refuse(str(document["error"]))
                continue
            reply.take(document)
            if len(reply.chunk_times) >= ask.fault_after and reply.outcome == "failed":
                if ask.fault == "disconnect":
                    reply.outcome = "left"
                    return
                if ask.fault == "cancel" and not cancelled:
                    cancelled = True
                    cancel(self._target, ask.id)


def cancel(target: Target, request_id: str) -> None:
    """Stop a request by its id, on a connection of its own. One that has ended meanwhile is no error."""
    connection = http.client.HTTPConnection(target.http, timeout=TIMEOUT)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{target.model}/generate", json.dumps({"cancel": request_id}).encode("utf-8"))
        connection.getresponse().read()
