"""The decode loop: continuous batching, one step at a time, in the caller's thread or in its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from builder.decoding.random import fresh_seed
from builder.errors import EngineError, RequestError
from builder.runtime.answer import Answer
from builder.runtime.compute_share import share_pass_time
from builder.runtime.decoder import Decoder, Verdict
from builder.runtime.observer import Observer, SilentObserver
from builder.runtime.request import FinishReason, Output, Request
from builder.runtime.runner import Runner
from builder.runtime.scheduler import Scheduler
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings
from builder.runtime.switches import Switches
from builder.runtime.validation import check_request
from builder.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Engine:
    """Serves requests with a target and, if given, a draft. `submit`, `cancel` and `set_switches` may be called from any thread.

    The runners come with their caches allocated, settings.num_blocks of settings.block_size each: the draft's may be
    the target's (settings.shared_kv), and only the caller knows how the two are joined.
    Every output of a request, the last one included, is delivered by the thread that runs `step`, outside all locks.
    EngineError when the settings and the runners do not fit together.
    """

    def __init__(
        self,
        target: Runner,
        draft: Runner | None,
        settings: EngineSettings,
        *,
        eos_token_ids: frozenset[int],
        tokenizer: Tokenizer | None = None,
        observer: Observer | None = None,
        version: str = "0",
    ) -> None:
        if settings.max_num_tokens < settings.max_batch_size:
            limits = f"max_num_tokens {settings.max_num_tokens} is below max_batch_size {settings.max_batch_size}"
            raise EngineError(f"{limits}: a pass must have a row for each running sequence", where="engine")
        self.settings = settings
        self.version = version
        self._vocab_size = target.config.vocab_size
        self._eos = eos_token_ids
        self._tokenizer = tokenizer
        self._observer = observer or SilentObserver()
        self._decoder = Decoder(target, draft, settings)
        self._scheduler = Scheduler(settings, own_draft_cache=self._decoder.own_draft_cache)
        self._changed = threading.Condition()  # guards scheduler, sequences, cancelled and stopping
        self._sequences: dict[str, Sequence] = {}  # by request id, until the last output is made
        self._cancelled: dict[str, str] = {}  # request id -> reason
        self._outbox: list[tuple[Sequence, Output]] = []  # of the stepping thread
        self._arrivals = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Queue a request. RequestError for a bad value or a full queue; EngineError once the engine is stopped."""
        check_request(request, self.settings, self._vocab_size, has_tokenizer=self._tokenizer is not None)
        seed = fresh_seed() if request.sampling.seed is None else request.sampling.seed
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopped")
            if request.id in self._sequences:
                raise RequestError(f"a request with id {request.id!r} is being served", where="id", mend="Give each request its own id")
            if self._scheduler.queue_full:
                waiting = len(self._scheduler.waiting)
                raise RequestError(f"{waiting} requests are waiting already", where="serving.max_waiting", mend="Try again later")
            answer = Answer(request, self._eos, self._scheduler.context, self._tokenizer)
            sequence = Sequence(request, on_output, self._arrivals, seed, list(request.prompt_ids), answer)
            self._arrivals += 1
            self._sequences[request.id] = sequence
            self._scheduler.add(sequence)
            self._changed.notify_all()

    def cancel(self, request_id: str, reason: str) -> bool:
        """End a request at the next step; its last output says so. False when there is no such request."""
        with self._changed:
            known = request_id in self._sequences
            if known:
                self._cancelled.setdefault(request_id, reason)
                self._changed.notify_all()
            return known

    def set_switches(self, switches: Switches) -> None:
        """What the operator allows from the next step on, of running sequences too.

        Back on, drafts are as good as before: a shared cache was filled by the target, and a draft with a cache of its own
        first runs the tokens that it missed.
        """
        with self._changed:
            self._scheduler.switches = switches

    @torch.inference_mode()
    def step(self) -> bool:
        """One iteration: cancel, admit, draft, one target pass, accept, emit. True while there is more to do.

        A failure ends the running requests with an error output, and the engine goes on with the others.
        """
        try:
            self._iterate()
        except Exception as error:
            log.exception("the decode step failed")
            self._fail(error)
        self._deliver()
        with self._changed:
            return bool(self._sequences)

    def start(self) -> None:
        """Run the loop in a thread of its own until `stop`."""
        with self._changed:
            if self._thread is not None:
                raise EngineError("the engine is running already")
            self._stopping = False
            self._thread = threading.Thread(target=self._loop, name="tandem-engine", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the loop after its current step; what is still running or waiting is cancelled."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        with self._changed:
            self._cancelled = dict.fromkeys(self._sequences, "the engine is stopping") | self._cancelled
            self._drop_cancelled()
        self._deliver()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or bool(self._sequences))
                if self._stopping:
                    return
            self.step()

    def _iterate(self) -> None:
        scheduler = self._scheduler
        with self._changed:
            self._drop_cancelled()
            scheduler.admit()
            scheduler.make_room()
            limits = scheduler.draft_limits()
        if not scheduler.running:
            return
        started = time.monotonic()
        drafts = self._decoder.propose(limits)
        drafted = time.monotonic()
        groups = [(sequence, draft) for (sequence, _), draft in zip(limits, drafts, strict=True)]
        chunks = scheduler.prefill_chunks(sum(1 + len(draft) for draft in drafts))
        verdicts = self._decoder.run(groups, chunks)
        now = time.monotonic()
        share_pass_time(groups, chunks, drafted - started, now - drafted)
        with self._changed:
            for verdict in verdicts:
                self._settle(verdict, now)
            scheduler.publish()
            running, waiting = len(scheduler.running), len(scheduler.waiting)
        blocks = scheduler.blocks
        self._observer.pass_done(running, waiting, blocks.num_used, blocks.num_cached, blocks.num_blocks)

    def _settle(self, verdict: Verdict, now: float) -> None:
        """Append what a sequence won, give back the blocks of what was rejected, and emit."""
        sequence, answer = verdict.sequence, verdict.sequence.answer
        if verdict.drafted:
            answer.tally.round(verdict.drafted, verdict.accepted)
            self._observer.round_done(verdict.drafted, verdict.accepted)
        answer.take(sequence.token_ids, verdict.token_ids, verdict.logprobs)
        before = answer.last_token_at
        output = answer.output(sequence.token_ids, now)
        if output is not None and output.token_ids:
            if before is None:
                self._observer.first_token(sequence.request, now - sequence.request.arrival)
            self._observer.tokens_emitted(sequence.request, len(output.token_ids), None if before is None else now - before)
        if output is not None and output.finish_reason is not None:
            self._close(sequence, output, now)
        else:
            self._scheduler.trim(sequence)
            if output is not None:
                self._outbox.append((sequence, output))

    def _close(self, sequence: Sequence, output: Output, now: float) -> None:
        """Free all a sequence holds and queue its last output."""
        self._scheduler.remove(sequence)
        self._forget(sequence, output, now)

    def _forget(self, sequence: Sequence, output: Output, now: float) -> None:
        self._sequences.pop(sequence.request.id, None)
        self._cancelled.pop(sequence.request.id, None)
        self._outbox.append((sequence, output))
        self._observer.finished(sequence.request, output, now - sequence.request.arrival)

    def _drop_cancelled(self) -> None:
        now = time.monotonic()
        for request_id, reason in list(self._cancelled.items()):
            sequence = self._sequences[request_id]
            self._close(sequence, sequence.answer.abandon(FinishReason.CANCELLED, reason), now)

    def _fail(self, error: Exception) -> None:
        """The running requests are lost, their tokens may be half settled. With none running, admission itself failed."""
        now = time.monotonic()
        with self._changed:
            for sequence in self._scheduler.abandon_running() or self._scheduler.abandon_waiting():
                self._forget(sequence, sequence.answer.abandon(FinishReason.ERROR, f"{type(error).__name__}: {error}"), now)

    def _deliver(self) -> None:
        """A consumer that raises loses its own request only, and hears no more of it."""
        outbox, self._outbox = self._outbox, []
        for sequence, output in outbox:
            try:
                sequence.on_output(output)
            except Exception:
                log.warning("the consumer of request %s failed; the request is cancelled", sequence.request.id, exc_info=True)
                sequence.on_output = _nowhere
                if output.finish_reason is None:
                    self.cancel(sequence.request.id, "its consumer failed")


def _nowhere(_output: Output) -> None:
    """Takes the outputs of a request whose consumer is gone."""
