"""An engine that repeats its prompt, one token a round: what Triton's side does is then known to the letter.

Copied into a version folder, where the decode model's stub finds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from builder.decoding.control import State
from builder.runtime.observer import Observer
from builder.runtime.request import Cancellation, DecodeStats, FinishReason, Output, Request, Usage
from builder.runtime.speculation import ControlReport
from builder.runtime.switches import Switches

SECONDS_PER_TOKEN = 0.002
FAILING_SEED = 13  # a request with this seed fails in the engine
SLOW_SEED = 21  # a token each 50 ms
STARVED_SEED = 34  # its time is over before it gets a token
BREAKING_SEED = 66  # the engine is broken afterwards


class EchoEngine:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._cancelled: dict[str, Cancellation] = {}
        self.broken = False
        self._running: set[str] = set()

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        self._running.add(request.id)
        threading.Thread(target=self._echo, args=(request, on_output), daemon=True).start()

    def cancel(self, request_id: str, reason: Cancellation) -> bool:
        self._cancelled[request_id] = reason
        return request_id in self._running

    def set_switches(self, switches: Switches) -> None: ...

    def control_report(self) -> ControlReport:
        return ControlReport(State.SPECULATING, 4, ())

    def observe_steps(self, observer: object) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...

    def _echo(self, request: Request, on_output: Callable[[Output], None]) -> None:
        prompt, started, sent = request.prompt_ids, time.monotonic(), 0
        if request.sampling.seed == FAILING_SEED:
            on_output(Output(request.id, (), finish_reason=FinishReason.ERROR, error="unlucky"))
            return
        if request.sampling.seed == STARVED_SEED:
            usage, why = Usage(len(prompt), 0), Cancellation.DEADLINE
            on_output(Output(request.id, (), finish_reason=FinishReason.TIMEOUT, usage=usage, stats=DecodeStats("plain"), cancellation=why))
            return
        while True:
            time.sleep(0.05 if request.sampling.seed == SLOW_SEED else SECONDS_PER_TOKEN)
            token = prompt[sent % len(prompt)]
            context = tuple(prompt[at % len(prompt)] for at in range(max(0, sent - 8), sent))
            sent += 1
            self._observer.pass_done(1, 0, 3, 2, 10)
            self._observer.round_done(4, 2)
            self._observer.tokens_emitted(request, 1, SECONDS_PER_TOKEN if sent > 1 else None)
            if sent == 1:
                self._observer.first_token(request, time.monotonic() - started)
            reason = FinishReason.CANCELLED if request.id in self._cancelled else None
            if sent == request.sampling.max_tokens:
                reason = FinishReason.LENGTH
            logprobs = ({token: -0.5, 0: -1.5},) if request.sampling.logprobs is not None else ()
            output = Output(request.id, (token,), context, logprobs=logprobs, finish_reason=reason)
            if reason is None:
                on_output(output)
                continue
            stats = DecodeStats("speculative" if request.speculation else "plain", sent, 4 * sent, 2 * sent, (0, 0, sent))
            usage, why = Usage(len(prompt), sent), self._cancelled.get(request.id)
            last = Output(request.id, (token,), context, -1, logprobs, reason, usage, stats, cancellation=why)
            self.broken = request.sampling.seed == BREAKING_SEED
            self._running.discard(request.id)
            self._observer.finished(request, last, time.monotonic() - started)
            on_output(last)
            return


def load(folder: Path, observer: Observer) -> EchoEngine:
    assert (folder / "pipeline.json").is_file()
    return EchoEngine(observer)
