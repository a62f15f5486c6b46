"""The clients as Locust runs them: each asks, measures, and reports a sample. Imported only where gevent has patched the process."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import gevent
from gevent.pool import Group
from locust import User, task

from loadtest.ask import Ask, Message
from loadtest.grpc_client import GrpcClient
from loadtest.http_client import HttpClient
from loadtest.reply import Client, Reply
from loadtest.sample import Sample
from loadtest.shift import Shift
from loadtest.timetable import arrivals

UNTIL_STOPPED = 86_400.0  # seconds


class TandemUser(User):
    """Closed: asks, waits for the answer, thinks, asks again. Open: its share of the arrivals, each on a greenlet of its own."""

    def on_start(self) -> None:
        self._shift: Shift = self.environment.shift
        self._idle: list[dict[str, Client]] = []  # clients of users that wait, one of each kind at most
        self._flying = Group()
        self._history: tuple[Message, ...] = ()
        self._pause = 0.0
        plan = self._shift.plan
        rate = (plan.rate or plan.workload.rate or 0.0) / plan.users
        rng = random.Random(f"{self._shift.next_key()}/arrivals")
        self._due: Iterator[float] = arrivals(plan.workload, rate, self._shift.block.seconds, rng) if plan.workload.open else iter(())

    def on_stop(self) -> None:
        """What was asked is waited for: an answer cut off would count as neither arm's."""
        self._flying.join()
        for client in itertools.chain.from_iterable(clients.values() for clients in self._idle):
            client.close()

    def wait_time(self) -> float:
        pause, self._pause = self._pause, 0.0
        return pause

    @task
    def act(self) -> None:
        if self._shift.plan.workload.open:
            self._arrive()
        else:
            self._converse()

    def _arrive(self) -> None:
        """Wait until the next request is due, and start it whatever became of those before."""
        due = next(self._due, None)
        self._pause = UNTIL_STOPPED if due is None else max(0.0, self._shift.zero + due - time.monotonic())
        self.wait()  # type: ignore[no-untyped-call]  # Locust may end a user only here
        key = self._shift.next_key()
        self._flying.add(gevent.spawn(self._ask, self._shift.draw(key), due))

    def _converse(self) -> None:
        ask = self._shift.draw(self._shift.next_key(), self._history)
        reply = self._ask(ask, time.monotonic() - self._shift.zero)
        turn = len(self._history) // 2 + 1
        goes_on = turn < self._shift.plan.workload.turns and reply.outcome == "done"
        self._history = (*ask.history, {"role": "assistant", "content": reply.text}) if goes_on else ()
        self._pause = self._shift.plan.workload.think_time

    def _ask(self, ask: Ask, due: float) -> Reply:
        shift = self._shift
        clients = self._idle.pop() if self._idle else {}
        kind = "grpc" if ask.protocol == "grpc" else "http"
        if kind not in clients:
            clients[kind] = (GrpcClient if kind == "grpc" else HttpClient)(shift.target)
        started = time.monotonic()
        reply = clients[kind].ask(ask)
        ended = time.monotonic()
        self._idle.append(clients)
        sample = Sample.of(
            ask, reply, block=shift.block.number, arm=shift.block.arm, due=due, started=started, ended=ended, zero=shift.zero
        )
        self.environment.events.request.fire(
            request_type=ask.protocol,
            name=ask.kind,
            response_time=sample.e2e * 1e3,
            response_length=sample.tokens,
            exception=RuntimeError(reply.error) if reply.outcome == "failed" else None,
            context={},
            sample=sample,
        )
        return reply
