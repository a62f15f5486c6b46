"""The thread between the engine's and Triton: a response's shared-memory round trip (about 0.1 ms) never delays a decode step."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from builder.repository.models.answer import Answer
from builder.repository.models.tensors import log_exception
from builder.runtime.request import Cancellation, Output


class Delivery:
    """Answers by the engine's request id, from `open` until the engine has nothing more for them. `cancel(engine_id, reason)` ends a
    request whose answer cannot be sent."""

    def __init__(self, cancel: Callable[[str, Cancellation], bool]) -> None:
        self._cancel = cancel
        self._answers: dict[str, Answer] = {}
        self._lock = threading.Lock()  # guards _answers
        self._outbox: queue.SimpleQueue[tuple[str, Output] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tandem-delivery")
        self._thread.start()

    def open(self, engine_id: str, answer: Answer) -> None:
        with self._lock:
            self._answers[engine_id] = answer

    def forget(self, engine_id: str) -> None:
        with self._lock:
            del self._answers[engine_id]

    def put(self, engine_id: str, output: Output) -> None:
        self._outbox.put((engine_id, output))

    def live(self) -> list[tuple[str, Answer]]:
        with self._lock:
            return list(self._answers.items())

    def stop(self) -> list[Answer]:
        """Deliver what the engine gave; the answers that are still not complete."""
        self._outbox.put(None)
        self._thread.join()
        return [answer for _, answer in self.live()]

    def _run(self) -> None:
        holding: dict[str, Answer] = {}  # answers with chunks that came too soon after the ones before
        while True:
            try:
                item = self._outbox.get(timeout=_time_left(holding.values()))
            except queue.Empty:
                self._flush_due(holding)
                continue
            if item is None:
                return
            self._deliver(*item, holding)

    def _deliver(self, engine_id: str, output: Output, holding: dict[str, Answer]) -> None:
        answer = self._answers.get(engine_id)
        if answer is None:
            return
        self._try(engine_id, partial(answer.add, output))
        holding.pop(engine_id, None)
        if answer.complete:
            self.forget(engine_id)
        elif answer.failed:
            self._cancel(engine_id, Cancellation.UNDELIVERABLE)
        elif answer.due is not None:
            holding[engine_id] = answer

    def _flush_due(self, holding: dict[str, Answer]) -> None:
        for engine_id, answer in list(holding.items()):
            if answer.due is None or answer.due <= time.monotonic():
                self._try(engine_id, answer.flush)
            if answer.due is None:
                del holding[engine_id]

    def _try(self, engine_id: str, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:  # this answer cannot be sent; the others can
            log_exception(error)
            self._cancel(engine_id, Cancellation.UNDELIVERABLE)


def _time_left(holding: Collection[Answer]) -> float | None:
    """Seconds until the first held chunks are due; None, for ever, when nothing is held."""
    dues = [answer.due for answer in holding if answer.due is not None]
    return max(0.0, min(dues) - time.monotonic()) if dues else None
