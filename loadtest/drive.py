"""The client process: runs a plan's blocks with Locust and writes samples.

    python -m loadtest.drive run PLAN.json SAMPLES.jsonl
    python -m loadtest.drive worker HOST PORT

Locust replaces blocking calls by gevent's: it needs a process of its own. A line on stdout tells of each block that begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
from grpc.experimental.gevent import init_gevent
from locust.env import Environment
from locust.runners import LocalRunner, MasterRunner, Runner, WorkerRunner

from builder.serve import lifeline
from builder.serve.ports import free_ports
from loadtest.live import LiveMetrics
from loadtest.plan import Plan
from loadtest.sample import Sample, write
from loadtest.shift import Shift
from loadtest.timetable import Block, stage_times
from loadtest.users import TandemUser

LOOPBACK = "127.0.0.1"
DRAIN_SECONDS = 120.0  # for answers under way at a block's end
CONNECT_SECONDS = 60.0
BLOCK = "block"  # Locust's message to its workers that a block begins


class Driver:
    """Runs here, or in workers that Locust keeps in step."""

    def __init__(self, plan: Plan, samples: Path) -> None:
        self._plan = plan
        self._samples = samples
        self._live = LiveMetrics()
        self._workers: list[subprocess.Popen[bytes]] = []
        if plan.live_port:
            self._live.serve(plan.live_port)
        self.environment = environment()
        if not plan.workers:
            self.environment.events.request.add_listener(lambda sample, **_: self._take([sample]))

    def run(self) -> None:
        with self._runner() as runner:
            for block in self._plan.blocks:
                print(json.dumps({"block": block.number, "arm": block.arm, "seconds": block.seconds}), flush=True)
                self._run_block(runner, block)
            runner.quit()

    def _run_block(self, runner: Runner, block: Block) -> None:
        """Each stage's users, then wait for the answers under way."""
        assert isinstance(runner, LocalRunner | MasterRunner)  # noqa: S101 - narrows the type
        runner.send_message(BLOCK, {"plan": self._plan.to_json(), "number": block.number})
        for start, end, load in stage_times(self._plan.workload.stages, block.seconds):
            users = self._plan.users if self._plan.workload.open else round(self._plan.users * load)
            self._live.users(users)
            if users:
                runner.start(users, spawn_rate=users)
            gevent.sleep(end - start)
        self._live.users(0)
        runner.stop()
        if any(worker.poll() is not None for worker in self._workers):
            raise RuntimeError(f"a worker of Locust ended in block {block.number}: what it measured is lost")

    def _take(self, samples: list[Sample]) -> None:
        write(samples, self._samples)
        self._live.add(samples)

    def _take_report(self, client_id: str, data: dict[str, Any]) -> None:  # noqa: ARG002 - Locust names the arguments
        self._take([Sample(**row) for row in data["samples"]])

    @contextlib.contextmanager
    def _runner(self) -> Iterator[Runner]:
        if not self._plan.workers:
            runner: Any = self.environment.create_local_runner()
            runner.register_message(BLOCK, begin_block)
            yield runner
            return
        port = free_ports(LOOPBACK)["http"]
        runner = self.environment.create_master_runner(LOOPBACK, port)
        self.environment.events.worker_report.add_listener(self._take_report)
        self._workers = [start_worker(LOOPBACK, port) for _ in range(self._plan.workers)]
        try:
            with gevent.Timeout(CONNECT_SECONDS, RuntimeError("not all workers of Locust came up")):
                while len(runner.clients.ready) < self._plan.workers:
                    gevent.sleep(0.1)
            yield runner
        finally:
            for worker in self._workers:
                worker.terminate()
                worker.wait()


def environment() -> Environment:
    made = Environment(user_classes=[TandemUser], stop_timeout=DRAIN_SECONDS)
    made.events.user_error.add_listener(_give_up)
    return made


def begin_block(environment: Environment, msg: Any) -> None:
    plan = Plan.from_json(msg.data["plan"])
    block = next(block for block in plan.blocks if block.number == msg.data["number"])
    runner = environment.runner
    environment.shift = Shift(plan, block, runner.worker_index if isinstance(runner, WorkerRunner) else 0)  # type: ignore[attr-defined]


def start_worker(host: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loadtest.drive", "worker", host, str(port)]
    return subprocess.Popen([sys.executable, "-I", lifeline.__file__, str(os.getpid()), *command])


def work(host: str, port: int) -> None:
    """A worker of Locust: its samples travel with the reports Locust makes every three seconds."""
    made = environment()
    waiting: list[dict[str, Any]] = []

    def report(client_id: str, data: dict[str, Any]) -> None:  # noqa: ARG001 - Locust names the arguments
        data["samples"], waiting[:] = list(waiting), []

    made.events.request.add_listener(lambda sample, **_: waiting.append(sample.to_json()))
    made.events.report_to_master.add_listener(report)
    runner = made.create_worker_runner(host, port)
    runner.register_message(BLOCK, begin_block)
    runner.greenlet.join()


def _give_up(user_instance: Any, exception: BaseException, tb: Any) -> None:  # noqa: ARG001 - Locust names the arguments
    """An error of ours, not of the server: measurements with it would be worth nothing."""
    traceback.print_exception(type(exception), exception, tb)
    sys.stderr.flush()
    os._exit(3)


def main(arguments: list[str]) -> None:
    init_gevent()  # gRPC's core blocks in C, where gevent cannot see it
    if arguments[0] == "worker":
        work(arguments[1], int(arguments[2]))
    else:
        plan = Plan.from_json(json.loads(Path(arguments[1]).read_text(encoding="utf-8")))
        Driver(plan, Path(arguments[2])).run()


if __name__ == "__main__":
    main(sys.argv[1:])
