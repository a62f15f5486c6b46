"""The engine of trtllm-engine: our decode loop over a target and a draft that Triton's tensorrtllm backend serves.

The backend batches what is in flight and keeps the caches, so there is no common step: every sequence has rounds of its own (draft,
then one pass of the target that checks it), and where it has no drafts one request streams. What is ours: who is admitted, how
many tokens are drafted, what was accepted, where an answer ends, the counts, and the switches, which hold from the next round on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from builder.decoding.random import fresh_seed, sample_seed
from builder.errors import EngineError, OverloadError, RequestError
from builder.runtime.answer import Answer
from builder.runtime.delivery import deliver
from builder.runtime.drain import Drain
from builder.runtime.engine_model import EngineModel
from builder.runtime.limits import Limits
from builder.runtime.loop_thread import LoopThread
from builder.runtime.observer import Observer, SilentObserver
from builder.runtime.pair_decoder import PairDecoder
from builder.runtime.pair_exit import PairExit
from builder.runtime.pair_loop import PairLoop
from builder.runtime.places import Places
from builder.runtime.policy import make_policy
from builder.runtime.request import Cancellation, Output, Request
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import ControlReport
from builder.runtime.steps import StepObserver
from builder.runtime.switches import Switches
from builder.runtime.validation import check_request
from builder.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class PairEngine:
    """`submit`, `cancel` and `set_switches` may be called from any thread; outputs come from the engine's own, where the models are
    called too, and `close` last of all. With `exit_at` tokens that the draft is sure of leave unverified."""

    def __init__(
        self,
        target: EngineModel,
        draft: EngineModel | None,
        settings: EngineSettings,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        draft_logits: bool = False,
        exit_at: PairExit | None = None,
        tokenizer: Tokenizer | None = None,
        observer: Observer | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._settings = settings
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._tokenizer = tokenizer
        self._observer = observer or SilentObserver()
        policy = make_policy(settings)
        self._places = Places(settings.max_batch_size, policy)
        decoder = PairDecoder(target, draft, draft_logits=draft_logits, looks_up=settings.proposer == "hybrid")
        self._rounds = PairLoop(decoder, settings, self._places, policy, self._observer, self._emit, exit_at)
        self._close = close
        self._lock = threading.Lock()  # guards what follows
        self._live: dict[str, int] = {}  # answers by request id, each until its last output is made
        self._limits = Limits(settings.tenants)
        self._drain = Drain()
        self._arrivals = 0
        self._loop: LoopThread | None = None
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # of the loop's thread, as what follows
        self._reasons: dict[str, Cancellation] = {}

    @property
    def broken(self) -> bool:
        """Requests that fail do so in models of their own: loading this one anew would mend nothing."""
        return False

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Queue a request, all its answers or none.

        RequestError for a bad value, OverloadError where it may come again later, EngineError unless the engine is started.
        """
        check_request(request, self._settings, self._vocab_size, has_tokenizer=self._tokenizer is not None)
        _check_supported(request)
        seed = fresh_seed() if request.sampling.seed is None else request.sampling.seed
        with self._lock:
            if self._loop is None:
                raise EngineError("the engine is not started")
            if request.id in self._live:
                raise RequestError(f"a request with id {request.id!r} is being served", where="id", mend="Give each request its own id")
            self._check_room(request)
            self._live[request.id] = request.sampling.n
            self._loop.call(self._begin, self._sequences(request, on_output, seed))

    def _check_room(self, request: Request) -> None:
        now, answers, live = time.monotonic(), request.sampling.n, sum(self._live.values())
        self._limits.check(request.tenant, answers, now)
        missing = live + answers - self._settings.max_waiting - self._settings.max_batch_size
        if missing > 0:
            what = f"{max(0, live - self._settings.max_batch_size)} answers are waiting already"
            raise OverloadError(what, where="serving.max_waiting", limit="queue", retry_after=self._drain.seconds(missing, now))
        self._limits.accepted(request.tenant, answers, now)

    def _sequences(self, request: Request, on_output: Callable[[Output], None], seed: int) -> list[Sequence]:
        sequences = []
        for index in range(request.sampling.n):
            answer = Answer(request, self._eos, self._settings.max_seq_len, self._tokenizer, index)
            own_seed, ids = sample_seed(seed, index), list(request.prompt_ids)
            sequences.append(Sequence(request, on_output, self._arrivals, own_seed, ids, answer))
            self._arrivals += 1
        return sequences

    def cancel(self, request_id: str, reason: Cancellation) -> bool:
        """End a request; its last output says so. False when there is no such request."""
        with self._lock:
            if request_id not in self._live or self._loop is None:
                return False
            self._loop.call(self._end, request_id, reason)
            return True

    def set_switches(self, switches: Switches) -> None:
        """What the operator allows from the next round on, of running sequences too."""
        self._rounds.allow(switches)

    def control_report(self) -> ControlReport:
        """State of the draft-length control, and its transitions since the report before."""
        return self._rounds.report()

    def observe_steps(self, observer: StepObserver) -> None:
        """Tell it of every round from the next one on."""
        self._rounds.steps = observer

    def start(self) -> None:
        """Serve in a thread of its own until `stop`."""
        with self._lock:
            if self._loop is not None:
                raise EngineError("the engine is running already")
            self._loop = LoopThread("tandem-pair")

    def stop(self) -> None:
        """Cancel what is running or waiting, and let go of the models."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(self._shut_down())

    async def _shut_down(self) -> None:
        for request_id in list(self._tasks):
            self._end(request_id, Cancellation.SHUTDOWN)
        running = [task for tasks in self._tasks.values() for task in tasks]
        await asyncio.gather(*running, return_exceptions=True)
        if self._close is not None:
            await self._close()

    def _begin(self, sequences: list[Sequence]) -> None:
        request_id = sequences[0].request.id
        self._tasks[request_id] = [asyncio.ensure_future(self._serve(sequence)) for sequence in sequences]

    def _end(self, request_id: str, reason: Cancellation) -> None:
        self._reasons.setdefault(request_id, reason)
        for task in self._tasks.get(request_id, ()):
            # One turn later: a task that is cancelled before its first step ends without a last output.
            asyncio.get_running_loop().call_soon(task.cancel)

    async def _serve(self, sequence: Sequence) -> None:
        """From the queue to the last output."""
        request, answer = sequence.request, sequence.answer
        left = None if request.timeout is None else request.arrival + request.timeout - time.monotonic()
        try:
            async with asyncio.timeout(left), self._places.hold(sequence):
                await self._rounds.run(sequence)
        except (TimeoutError, asyncio.CancelledError) as error:
            if answer.finish_reason is None:  # else the last output is out already
                reason = self._reasons.get(request.id, Cancellation.SHUTDOWN)
                reason = Cancellation.DEADLINE if isinstance(error, TimeoutError) else reason
                self._emit(sequence, answer.cancel(reason, sequence.token_ids, time.monotonic()))
        except Exception as error:  # one answer fails, the others go on
            log.exception("request %s failed", request.id)
            if answer.finish_reason is None:
                self._emit(sequence, answer.abandon(f"{type(error).__name__}: {error}"))

    def _emit(self, sequence: Sequence, output: Output) -> None:
        if output.finish_reason is not None:
            self._forget(sequence, output)
        deliver(sequence, output, self._end)

    def _forget(self, sequence: Sequence, output: Output) -> None:
        request, now = sequence.request, time.monotonic()
        with self._lock:
            self._live[request.id] -= 1
            over = not self._live[request.id]
            if over:
                del self._live[request.id]
            self._limits.ended(request.tenant, now)
            self._drain.ended(now)
        if over:
            self._tasks.pop(request.id, None)
            self._reasons.pop(request.id, None)
        self._observer.finished(request, output, now - request.arrival)


def _check_supported(request: Request) -> None:
    """RequestError for what the tensors of the backend cannot say, or not for each token of a checked draft."""
    sampling = request.sampling
    if sampling.logprobs is not None:
        raise RequestError("logprobs are not available with trtllm-engine", where="logprobs", mend="Leave logprobs out")
    if sampling.min_p:
        raise RequestError("min_p is not available with trtllm-engine", where="min_p", mend="Leave min_p out, or use top_p")
