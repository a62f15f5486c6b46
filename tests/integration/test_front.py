"""The front's split on a real HAProxy; small servers that say their name stand behind it. test_canary.py has tritonservers there."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from builder.errors import ServeError
from builder.serve.control import ModelControl
from builder.serve.front import Front
from builder.serve.front_control import FrontControl, running_front
from builder.serve.ports import free_ports
from tests.integration.talk import eventually

METHOD = "/tests.Echo/Stream"
go_on = threading.Event()


@contextmanager
def named_server(name: str, ports: dict[str, int]) -> Iterator[None]:
    """HTTP and gRPC; what it says first is its name, and the rest once `go_on` is set."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._chunk(name)
            if self.path == "/stream":
                go_on.wait(10)
                self._chunk("end")
            self._chunk("")

        def _chunk(self, text: str) -> None:
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield name.encode()
        if request == b"stream":
            go_on.wait(10)
            yield b"end"

    web = ThreadingHTTPServer(("127.0.0.1", ports["http"]), Handler)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    rpc = grpc.server(futures.ThreadPoolExecutor(8))
    rpc.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Echo", {"Stream": grpc.unary_stream_rpc_method_handler(stream)}),)
    )
    rpc.add_insecure_port(f"127.0.0.1:{ports['grpc']}")
    rpc.start()
    try:
        yield
    finally:
        rpc.stop(None).wait()
        web.shutdown()
        web.server_close()


class Talk:
    """A client of the front."""

    def __init__(self, front: Front) -> None:
        self._http = front.ports["http"]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{front.ports['grpc']}")
        self._call = self._channel.unary_stream(METHOD)

    def over_http(self, request_id: str | None = None, path: str = "/") -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._http, timeout=10)
        connection.request("GET", path, headers={"X-Request-ID": request_id} if request_id else {})
        response = connection.getresponse()
        said = response.read().decode()
        connection.close()
        return said if response.status == 200 else f"status {response.status}"

    def over_grpc(self, request_id: str | None = None) -> str:
        metadata = (("x-request-id", request_id),) if request_id else ()
        return b"".join(self._call(b"", metadata=metadata, timeout=10)).decode()

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[tuple[Talk, FrontControl, ExitStack]]:
    """A client, the front's control, and what ends the candidate."""
    ports, ends = free_ports(), free_ports()
    with named_server("live", ports), Front(tmp_path, "p", [ModelControl("127.0.0.1", ports["http"], ports["grpc"])], ends) as front:
        control = running_front(tmp_path, "p")
        assert control is not None
        with ExitStack() as candidate:
            candidate.enter_context(named_server("candidate", dict(control.candidate)))
            eventually(control.sees_candidate)
            talk = Talk(front)
            yield talk, control, candidate
            talk.close()
    assert running_front(tmp_path, "p") is None


def test_the_same_id_goes_the_same_way_by_both_protocols_and_the_share_is_near_what_was_set(
    parts: tuple[Talk, FrontControl, ExitStack],
) -> None:
    talk, control, _ = parts
    ids = [f"request-{number}" for number in range(600)]
    assert {talk.over_http(name) for name in ids[:20]} == {talk.over_grpc(name) for name in ids[:20]} == {"live"}
    control.set_share(10)
    first = {name: talk.over_http(name) for name in ids}
    assert first == {name: talk.over_grpc(name) for name in ids}
    assert list(first.values()).count("candidate") / len(ids) == pytest.approx(0.1, abs=0.04)
    control.set_share(50)
    more = {name for name in ids if talk.over_http(name) == "candidate"}
    assert {name for name, to in first.items() if to == "candidate"} < more  # who tried it goes on trying it
    without_id = [talk.over_http() for _ in range(300)]
    assert without_id.count("candidate") / len(without_id) == pytest.approx(0.5, abs=0.15)
    control.set_share(0)
    assert control.share() == 0
    assert {talk.over_http(name) for name in ids} == {talk.over_grpc(name) for name in ids} == {"live"}


def test_a_stream_passes_piece_by_piece_and_is_counted_while_it_runs(parts: tuple[Talk, FrontControl, ExitStack]) -> None:
    talk, control, _ = parts
    control.set_share(100)
    go_on.clear()
    connection = http.client.HTTPConnection("127.0.0.1", talk._http, timeout=10)
    connection.request("GET", "/stream")
    response = connection.getresponse()
    assert response.read1(100) == b"candidate"  # while the server still waits to say the rest
    call = talk._call(b"stream", timeout=10)
    assert next(call) == b"candidate"
    assert control.candidate_requests() == 2
    go_on.set()
    assert (response.read(), list(call)) == (b"end", [b"end"])
    connection.close()
    eventually(lambda: control.candidate_requests() == 0)


def test_requests_of_a_candidate_that_is_gone_go_to_the_live_version(parts: tuple[Talk, FrontControl, ExitStack]) -> None:
    talk, control, candidate = parts
    control.set_share(100)
    assert (talk.over_http("a"), talk.over_grpc("a")) == ("candidate", "candidate")
    candidate.close()  # the share stays as it is
    assert [talk.over_http("a") for _ in range(20)] == ["live"] * 20
    assert [talk.over_grpc("a") for _ in range(20)] == ["live"] * 20
    eventually(lambda: not control.sees_candidate())


def test_clients_of_the_front_do_not_reach_model_control(parts: tuple[Talk, FrontControl, ExitStack]) -> None:
    talk, _, _ = parts
    assert talk.over_http(path="/v2/repository/index") == "status 403"
    assert talk.over_http(path="/v2/models/p") == "live"


def test_a_second_front_and_one_without_servers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="no server of p runs"), Front(tmp_path, "p", [], free_ports()):
        pass
    server = ModelControl("127.0.0.1", 1, 2)
    second = Front(tmp_path, "p", [server], free_ports())
    with Front(tmp_path, "p", [server], free_ports()), pytest.raises(ServeError, match="another front of p runs"):
        second.__enter__()
    assert running_front(tmp_path, "p") is None
