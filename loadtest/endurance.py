"""A soak: hours of everything that goes wrong, and afterwards a look at whether anything was lost, kept or falsified."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.errors import ServeError, SpecError
from builder.repository.ensemble import ModelNames
from builder.serve.ports import free_ports
from builder.serve.stub import stub_process
from builder.serve.triton import Triton
from builder.spec.load import LoadedPipeline
from loadtest.ask import Ask, Target
from loadtest.at_rest import State, wait_for_rest
from loadtest.counts import outcome_counts
from loadtest.http_client import HttpClient
from loadtest.memory_watch import MemoryWatch, growth
from loadtest.plan import Plan
from loadtest.sample import Sample, read
from loadtest.session import LOOPBACK, start_clients
from loadtest.shift import Shift
from loadtest.summary import failed
from loadtest.timetable import SERVED, Block
from loadtest.workload import load_workload

MOST_GROWTH = 0.03  # of resident memory after the warm-up
WARM_UP_SHARE = 0.1  # of the time; the KV pool takes memory as its blocks are first used, so it is repeated until all were
REST_SECONDS = 60.0  # within which the server must be at rest after the last client
OVERTIME = 180.0  # seconds a client process may take beyond its time before it counts as hung


@dataclass(frozen=True)
class SoakOptions:
    workload: str = "soak"
    users: int = 8
    minutes: float = 20.0
    kills: int = 2
    checked: float = 0.05  # share of the whole greedy answers that are asked again, alone
    seed: int = 0
    raw: bool = False
    warm_ups: int = 5  # most of them; those after the first come on top of `minutes`


@dataclass(frozen=True)
class Finding:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class SoakReport:
    samples: tuple[Sample, ...]
    before: State
    after: State
    rest_seconds: float
    readings: tuple[int, ...]
    kills: int
    hung: bool
    checked: int
    different: tuple[str, ...]  # keys of requests whose answer alone was another one

    @property
    def findings(self) -> list[Finding]:
        before, after = self.before, self.after
        rise = growth(list(self.readings))
        unrefused = sum(s.fault == "malformed" and s.outcome not in ("refused", "failed") for s in self.samples)
        failures = [s for s in self.samples if failed(s)]
        at_rest = after.requests == 0 and after.used == 0
        return [
            Finding("blocks", at_rest and after.blocks == before.blocks, f"{after.free + after.cached} of {before.blocks} free at rest"),
            Finding("rest", at_rest, f"{self.rest_seconds:.1f} s after the last client, {after.requests} requests left"),
            Finding(
                "memory",
                rise is not None and abs(rise) <= MOST_GROWTH,
                f"{100 * (rise or 0):+.2f} % resident, last quarter over first, {len(self.readings)} readings"
                + (f"; the pool still grew, {before.free} of its blocks were unused at the start" if before.free else ""),
            ),
            Finding("identity", self.checked > 0 and not self.different, f"{len(self.different)} of {self.checked} answers differ"),
            Finding("refusals", unrefused == 0, f"{unrefused} malformed requests were answered"),
            Finding("failures", not failures, f"{len(failures)} requests failed" + (f", first: {failures[0].error}" if failures else "")),
            Finding("hang", not self.hung, "a client process did not end" if self.hung else "every client process ended"),
        ]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "checks": [{"name": f.name, "passed": f.passed, "detail": f.detail} for f in self.findings],
            "counts": outcome_counts(self.samples),
            "tokens": sum(sample.tokens for sample in self.samples),
            "kills": self.kills,
            "blocks": {"total": self.before.blocks, "free": self.after.free, "cached": self.after.cached, "used": self.after.used},
            "memory_growth": growth(list(self.readings)),
            "resident_bytes": {"first": self.readings[0], "last": self.readings[-1], "most": max(self.readings)} if self.readings else None,
            "different": list(self.different),
        }


def run_soak(
    loaded: LoadedPipeline, repository: Path, options: SoakOptions, folder: Path, on_progress: Callable[[str], None] = lambda _: None
) -> SoakReport:
    """A server of its own under the workload; the client process is killed `kills` times on the way, its requests with it.

    SpecError for an unknown workload, ServeError when the server cannot be started or its decode process not be found.
    """
    name = loaded.spec.metadata.name
    ports = free_ports(LOOPBACK)
    folder.mkdir(parents=True, exist_ok=True)
    on_progress("starting Triton")
    with (folder / "server.log").open("w", encoding="utf-8") as log, Triton(repository, name, ports, host=LOOPBACK, log=log) as server:
        target = Target(f"{LOOPBACK}:{ports['http']}", f"{LOOPBACK}:{ports['grpc']}", name, options.raw)
        metrics = f"{LOOPBACK}:{ports['metrics']}"
        process = stub_process(server, ModelNames.of(name).decode)
        if process is None:
            raise ServeError("the process that decodes cannot be found in /proc", where=name, mend="Run the soak as the server's user")
        warm_ups, legs = plans(target, options)
        hung = False
        for plan in warm_ups:
            on_progress(f"warm-up, {plan.blocks[0].seconds:.0f} s")
            hung |= not _run_leg(plan, folder, kill=False)
            before, _ = wait_for_rest(metrics, REST_SECONDS)
            if before.free == 0:
                break
        with MemoryWatch(process) as watch:
            for number, plan in enumerate(legs, 1):
                kill = number < len(legs)
                on_progress(
                    f"part {number} of {len(legs)}: {plan.blocks[0].seconds:.0f} s" + (", then the client is killed" if kill else "")
                )
                hung |= not _run_leg(plan, folder, kill)
        after, waited = wait_for_rest(metrics, REST_SECONDS)
        samples = tuple(read(folder / "samples.jsonl"))
        on_progress("asking a sample again, alone")
        chosen = _choose(samples, options)
        different = _ask_again(chosen, (*warm_ups, *legs), target)
    return SoakReport(samples, before, after, waited, tuple(watch.readings), len(legs) - 1, hung, len(chosen), tuple(different))


def plans(target: Target, options: SoakOptions) -> tuple[list[Plan], list[Plan]]:
    """The warm-ups, then a part for each kill and one more. A plan's place in both is its block's number, and with the seed its keys."""
    workload = load_workload(options.workload)
    if workload.temperature or workload.turns > 1:
        raise SpecError(
            f"the answers of workload {options.workload} cannot be asked again", where="--workload", mend="Use temperature 0 and one turn"
        )
    whole = options.minutes * 60
    parts = options.kills + 1
    lengths = [whole * WARM_UP_SHARE] * options.warm_ups + [whole * (1 - WARM_UP_SHARE) / parts] * parts
    made = [
        Plan(workload, target, options.users, (Block(number, SERVED, seconds, number),), seed=options.seed, rate=workload.rate)
        for number, seconds in enumerate(lengths)
    ]
    return made[: options.warm_ups], made[options.warm_ups :]


def _run_leg(plan: Plan, folder: Path, kill: bool) -> bool:
    """False when the client process hung and had to be killed. With `kill` it is killed in the middle of its requests."""
    (block,) = plan.blocks
    with (folder / "clients.log").open("a", encoding="utf-8") as log:
        # a process to be killed gets more work than time, so that it has requests under way then
        running = replace(plan, blocks=(replace(block, seconds=block.seconds + OVERTIME),)) if kill else plan
        process = start_clients(running, folder, folder / "samples.jsonl", log.fileno())
        try:
            if process.stdout:
                process.stdout.readline()  # the block begins
            process.wait(block.seconds + (0 if kill else OVERTIME))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return kill
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    if process.returncode:
        raise ServeError(f"the client process ended with status {process.returncode}", where=str(folder / "clients.log"))
    return True


def _choose(samples: Sequence[Sample], options: SoakOptions) -> list[Sample]:
    """At least one of the whole answers, if there is any."""
    whole = [sample for sample in samples if sample.complete]
    return random.Random(options.seed).sample(whole, min(len(whole), max(1, round(options.checked * len(whole)))))


def _ask_again(chosen: Sequence[Sample], plans: Sequence[Plan], target: Target) -> list[str]:
    """Keys whose answer differs when nobody else asks."""
    client = HttpClient(target)
    different = []
    for sample in chosen:
        plan = plans[sample.block]
        (block,) = plan.blocks
        ask: Ask = Shift(plan, block).draw(sample.key)
        reply = client.ask(replace(ask, id=f"{ask.id}/again", protocol="generate", fault=None))
        if reply.digest != sample.digest:
            different.append(sample.key)
    client.close()
    return different
