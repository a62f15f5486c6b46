"""The configuration of the front. tests/integration/test_front.py runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from builder.serve.control import ModelControl
from builder.serve.front import configuration
from builder.serve.front_control import FrontControl, FrontNote, running_front
from builder.serve.front_page import example

CANDIDATE, PORTS = {"http": 11, "grpc": 12, "metrics": 13}, {"http": 21, "grpc": 22}


def test_the_example_in_ops_is_what_the_front_would_run() -> None:
    file = Path(__file__).parents[3] / "ops" / "haproxy" / "haproxy.cfg"
    assert file.read_text() == example(), "run `python -m builder.serve.front_page ops/haproxy/haproxy.cfg`"


def test_haproxy_accepts_it_with_several_servers_and_an_address_of_ip_version_6(tmp_path: Path) -> None:
    (tmp_path / "share.map").write_text("share 0\n")
    servers = [ModelControl("::1", 31, 32), ModelControl("127.0.0.1", 33, 34)]
    text = configuration("p", servers, CANDIDATE, PORTS, "::", str(tmp_path / "admin.sock"), str(tmp_path / "share.map"))
    (tmp_path / "haproxy.cfg").write_text(text)
    binary = shutil.which("haproxy", path=os.pathsep.join([os.defpath, "/usr/sbin"]))
    assert binary, "apt-get install haproxy"
    checked = subprocess.run([binary, "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


def test_health_is_that_of_the_model_since_a_server_that_loads_a_version_calls_itself_not_ready() -> None:
    text = configuration("p", [ModelControl("127.0.0.1", 1, 2)], CANDIDATE, PORTS, "127.0.0.1", "s", "m")
    assert text.count("option httpchk GET /v2/models/p/ready") == 4
    assert "/v2/health/ready" not in text


def test_the_note_of_a_front_that_was_killed_is_no_front(tmp_path: Path) -> None:
    here, gone = (FrontControl(pid, "s", "m", PORTS, CANDIDATE) for pid in (os.getpid(), 2**22 + 1))
    FrontNote(tmp_path, "p").write(here)
    assert running_front(tmp_path, "p") == here
    FrontNote(tmp_path, "p").write(gone)
    assert running_front(tmp_path, "p") is None
