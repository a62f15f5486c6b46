"""One load test: a server, the client process, and what both leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import ServeError, SpecError
from builder.serve import lifeline
from builder.serve.ports import free_ports
from builder.serve.triton import Triton, model_ready
from builder.spec.load import LoadedPipeline
from builder.telemetry.scrape import Scrape, scrape
from loadtest.ask import Target
from loadtest.plan import Plan
from loadtest.report import Report
from loadtest.sample import read
from loadtest.server_p95 import FLUSHED, compare
from loadtest.timetable import blocks
from loadtest.workload import load_workload

LOOPBACK = "127.0.0.1"
LAST_LINES = 15


@dataclass(frozen=True)
class Options:
    """What the command line asks for. `url`, `grpc_url`: host:port of a server that runs already; without them one is started."""

    workload: str = "chat"
    users: int = 8
    minutes: float = 2.0
    ab: bool = False
    rate: float | None = None
    workers: int = 0
    live_port: int | None = None
    seed: int = 0
    raw: bool = False
    url: str | None = None
    grpc_url: str | None = None


def run_loadtest(
    loaded: LoadedPipeline, repository: Path, options: Options, folder: Path, on_progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Run it and keep samples and clients.json in `folder`.

    SpecError for a workload or option that does not fit; ServeError when the server or the client process fails.
    """
    workload = load_workload(options.workload)
    if options.rate is not None and not workload.open:
        raise SpecError(f"workload {options.workload} is closed: it has no rate", where="--rate", mend="Use --users, or an open workload")
    timetable = tuple(blocks(workload, options.minutes, options.ab))
    name = loaded.spec.metadata.name
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        at = stack.enter_context(serving(loaded, repository, options, folder, on_progress))
        target = Target(at.http, at.grpc, name, options.raw)
        plan = Plan(
            workload,
            target,
            options.users,
            timetable,
            (options.rate or workload.rate) if workload.open else None,
            options.workers,
            options.live_port,
            options.seed,
        )
        since, before = datetime.now(UTC), metrics_of(at)
        run_clients(plan, folder, on_progress)
        until = datetime.now(UTC)
        time.sleep(FLUSHED)
        after = metrics_of(at)
    samples = tuple(read(folder / "samples.jsonl"))
    told = compare(before, after, name, samples) if before and after else ()
    return Report(name, options.workload, plan, samples, loaded.spec.slo, loaded.spec.chargeback.label, since, until, told)


@dataclass(frozen=True)
class Addresses:
    """host:port each."""

    http: str
    grpc: str
    metrics: str


def metrics_of(at: Addresses) -> Scrape | None:
    """None where the metrics are out of reach, as those of a server on another machine may be."""
    try:
        return scrape(f"http://{at.metrics}/metrics")
    except ServeError:
        return None


@contextmanager
def serving(
    loaded: LoadedPipeline, repository: Path, options: Options, folder: Path, on_progress: Callable[[str], None]
) -> Iterator[Addresses]:
    """The running server, or one started on free ports, whose log goes to `folder`."""
    name = loaded.spec.metadata.name
    if options.url is not None:
        host, _, port = options.url.removeprefix("http://").rstrip("/").rpartition(":")
        if not host or not port.isdigit():
            raise SpecError(f"{options.url} is no host:port", where="--url", mend="Write it as 127.0.0.1:8000")
        if not model_ready(host, int(port), name):
            raise ServeError(f"does not serve {name}", where=options.url, mend="Start it with `builder serve`, or leave --url out")
        yield Addresses(f"{host}:{port}", options.grpc_url or f"{host}:{int(port) + 1}", f"{host}:{loaded.spec.serving.metrics_port}")
        return
    on_progress("starting Triton")
    ports = free_ports(LOOPBACK)
    with (folder / "server.log").open("w", encoding="utf-8") as log, Triton(repository, name, ports, host=LOOPBACK, log=log):
        yield Addresses(*(f"{LOOPBACK}:{ports[name]}" for name in ("http", "grpc", "metrics")))


def run_clients(plan: Plan, folder: Path, on_progress: Callable[[str], None] = lambda _: None) -> None:
    """The client process, until it has done its plan. Its samples are in samples.jsonl in `folder`. ServeError when it fails."""
    samples = folder / "samples.jsonl"
    samples.unlink(missing_ok=True)
    samples.touch(mode=0o600)
    with (folder / "clients.log").open("w", encoding="utf-8") as log:
        process = start_clients(plan, folder, samples, log.fileno())
        try:
            for line in process.stdout or ():
                block = json.loads(line)
                on_progress(f"block {block['block']} of {len(plan.blocks) - 1}: {block['arm']}, {block['seconds']:.0f} s")
            status = process.wait()
        finally:
            process.terminate()
            process.wait()
            if process.stdout:
                process.stdout.close()
    if status:
        last = (folder / "clients.log").read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise ServeError(f"the client process ended with status {status}:\n" + "\n".join(last), mend="Its log names the cause")


def start_clients(plan: Plan, folder: Path, samples: Path, log: int) -> subprocess.Popen[str]:
    """Samples are appended to `samples`. The process ends with this one."""
    file = folder / "plan.json"
    file.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    root = str(Path(__file__).parent.parent)  # where `loadtest` is imported from, whatever the working directory
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "loadtest.drive", "run", str(file), str(samples)]
    return subprocess.Popen(
        [sys.executable, "-I", lifeline.__file__, str(os.getpid()), *command],
        env={**os.environ, "PYTHONPATH": search},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
