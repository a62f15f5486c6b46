"""The decode loop: continuous batching, one step at a time, in the caller's thread or in its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from builder.decoding.random import fresh_seed, sample_seed
from builder.errors import EngineError, OverloadError, RequestError
from builder.runtime.answer import Answer
from builder.runtime.compute_share import share_pass_time
from builder.runtime.decoder import Decoder, Verdict
from builder.runtime.delivery import deliver
from builder.runtime.drain import Drain
from builder.runtime.endings import Endings
from builder.runtime.exits import ExitPoint, Exits
from builder.runtime.limits import Limits
from builder.runtime.observer import Observer, SilentObserver, tell_tokens
from builder.runtime.request import Cancellation, Output, Request
from builder.runtime.runner import Runner
from builder.runtime.scheduler import Scheduler
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import ControlReport
from builder.runtime.steps import StepObserver, step_of
from builder.runtime.switches import Switches
from builder.runtime.torch_threads import one_torch_thread
from builder.runtime.validation import check_request, check_settings
from builder.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3  # steps that fail with nothing served between them: the engine is broken
RESTART_SECONDS = 10.0  # hint to those that a broken engine refuses


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
        exits: Exits | None = None,
        draft_exit: ExitPoint | None = None,
    ) -> None:
        check_settings(settings)
        self.settings = settings
        self.version = version
        self._vocab_size = target.config.vocab_size
        self._eos = eos_token_ids
        self._tokenizer = tokenizer
        self._observer = observer or SilentObserver()
        self._steps: StepObserver | None = None
        self._depth = target.config.num_layers if exits is not None else None
        self._decoder = Decoder(target, draft, settings, exits, draft_exit)
        self._scheduler = Scheduler(settings, own_draft_cache=self._decoder.own_draft_cache, exits=exits)
        self._changed = threading.Condition()  # guards scheduler, sequences, endings and stopping
        self._sequences: dict[str, list[Sequence]] = {}  # by request id, each until its last output is made
        self._endings = Endings()
        self._limits = Limits(settings.tenants)
        self._drain = Drain()
        self._failures = 0  # steps that failed since one served something
        self._outbox: list[tuple[Sequence, Output]] = []  # of the stepping thread
        self._arrivals = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Queue a request, all its answers or none.

        RequestError for a bad value, OverloadError where it may come again later, EngineError once the engine is stopped.
        """
        check_request(request, self.settings, self._vocab_size, has_tokenizer=self._tokenizer is not None)
        seed = fresh_seed() if request.sampling.seed is None else request.sampling.seed
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopped")
            if request.id in self._sequences:
                raise RequestError(f"a request with id {request.id!r} is being served", where="id", mend="Give each request its own id")
            self._check_room(request)
            self._queue(request, on_output, seed)
            self._changed.notify_all()

    def _check_room(self, request: Request) -> None:
        now = time.monotonic()
        if self.broken:
            raise OverloadError("the engine failed and is being restarted", where="engine", limit="restart", retry_after=RESTART_SECONDS)
        self._limits.check(request.tenant, request.sampling.n, now)
        missing = self._scheduler.missing_places(request.sampling.n)
        if missing:
            what, wait = f"{len(self._scheduler.waiting)} answers are waiting already", self._drain.seconds(missing, now)
            raise OverloadError(what, where="serving.max_waiting", limit="queue", retry_after=wait)
        self._limits.accepted(request.tenant, request.sampling.n, now)

    def _queue(self, request: Request, on_output: Callable[[Output], None], seed: int) -> None:
        sequences: list[Sequence] = []
        for index in range(request.sampling.n):
            answer = Answer(request, self._eos, self._scheduler.longest, self._tokenizer, index)
            own_seed, ids = sample_seed(seed, index), list(request.prompt_ids)
            leader = sequences[0] if sequences else None
            sequences.append(Sequence(request, on_output, self._arrivals, own_seed, ids, answer, leader=leader))
            self._arrivals += 1
            self._scheduler.add(sequences[-1])
        self._sequences[request.id] = sequences
        if request.timeout is not None:
            self._endings.set_deadline(request.id, request.arrival + request.timeout)

    @property
    def broken(self) -> bool:
        """Whether steps keep failing: it takes no more requests and must be replaced."""
        return self._failures >= FAILURES_IN_A_ROW

    def cancel(self, request_id: str, reason: Cancellation) -> bool:
        """End a request at the next step; its last output says so. False when there is no such request."""
        with self._changed:
            known = request_id in self._sequences
            if known:
                self._endings.cancel(request_id, reason)
                self._changed.notify_all()
            return known

    def set_switches(self, switches: Switches) -> None:
        """What the operator allows from the next step on, of running sequences too.

        Back on, drafts are as good as before: a shared cache was filled by the target, and a draft with a cache of its own
        first runs the tokens that it missed.
        """
        with self._changed:
            self._scheduler.switches = switches
            self._scheduler.control.allow(time.monotonic(), switches.speculation)

    def control_report(self) -> ControlReport:
        """State of the draft-length control, and its transitions since the report before."""
        with self._changed:
            return self._scheduler.control.report()

    def observe_steps(self, observer: StepObserver) -> None:
        """Tell it of every step from the next one on. Without one, steps are not put into words at all."""
        self._steps = observer

    @torch.inference_mode()
    def step(self) -> bool:
        """One iteration: cancel, admit, draft, one target pass, accept, emit. True while there is more to do.

        A failure ends the running requests with an error output, and the engine goes on with the others.
        """
        try:
            with one_torch_thread():
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
            for request_id in self._sequences:
                self._endings.cancel(request_id, Cancellation.SHUTDOWN)
            self._drop_cancelled()
        self._deliver()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or bool(self._sequences))
                if self._stopping:
                    return
            try:
                self.step()
            except Exception:  # not even the failure could be settled
                log.exception("the decode loop failed")
                self._failures = FAILURES_IN_A_ROW
                return

    def _iterate(self) -> None:
        scheduler = self._scheduler
        with self._changed:
            self._drop_cancelled()
            scheduler.admit()
            scheduler.make_room()
            began = time.monotonic()
            limits = scheduler.draft_limits(began)
        if not scheduler.running:
            return
        control, caught_up = scheduler.control, scheduler.control.is_caught_up(limits)
        began_drafting = time.monotonic()
        drafts = self._decoder.propose(limits, control.stop_rule)
        drafting = (time.monotonic() - began_drafting) * (1 - self._decoder.share_ahead(drafts))
        groups = [(sequence, draft) for (sequence, _), draft in zip(limits, drafts, strict=True)]
        rows = sum(1 + len(draft) for draft in drafts)
        chunks = scheduler.prefill_chunks(rows)
        verdicts = self._decoder.run(groups, chunks)
        now = time.monotonic()
        share_pass_time(groups, chunks, drafting, now - began_drafting - drafting)
        if self._steps is not None and self._steps.active:
            self._steps.step_done(step_of(limits, chunks, verdicts, began=began_drafting, drafted=began_drafting + drafting, ended=now))
        with self._changed:
            for (_, limit), draft, verdict in zip(limits, drafts, verdicts, strict=False):  # those of finished prefills come after them
                control.round_done(verdict.sequence, limit, draft, verdict.accepted)
            for verdict in verdicts:
                self._settle(verdict, now)
                self._failures = 0
            scheduler.publish()
            if caught_up:
                control.drafted(drafts, drafting)
            seconds = time.monotonic() - began - drafting
            if chunks:
                control.prefilled(rows + sum(tokens for _, tokens in chunks), seconds)
            else:
                control.decoded(rows, seconds, drafting, sum(len(v.token_ids) for v in verdicts))
            running, waiting = len(scheduler.running), len(scheduler.waiting)
        blocks = scheduler.blocks
        self._observer.pass_done(running, waiting, blocks.num_used, blocks.num_cached, blocks.num_blocks)

    def _settle(self, verdict: Verdict, now: float) -> None:
        """Append what a sequence won, give back the blocks of what was rejected, and emit."""
        sequence, answer = verdict.sequence, verdict.sequence.answer
        if verdict.drafted:
            answer.tally.round(verdict.drafted, verdict.accepted)
            self._observer.round_done(verdict.drafted, verdict.accepted)
        taken = answer.take(sequence.token_ids, verdict.token_ids, verdict.logprobs)
        self._scheduler.policy.gave(sequence, taken)
        if self._depth is not None:
            answer.tally.ran(verdict.left_at, self._depth, taken)
        before = answer.last_token_at
        output = answer.output(sequence.token_ids, now)
        if output is not None:
            tell_tokens(self._observer, sequence.request, output, before, now)
        if output is not None and output.finish_reason is not None:
            self._close(sequence, output, now)
        else:
            self._scheduler.trim(sequence)
            if output is not None:
                self._outbox.append((sequence, output))
            self._scheduler.evict_if_full(sequence)

    def _close(self, sequence: Sequence, output: Output, now: float) -> None:
        """Free all a sequence holds and queue its last output."""
        self._scheduler.remove(sequence)
        self._forget(sequence, output, now)

    def _forget(self, sequence: Sequence, output: Output, now: float) -> None:
        request = sequence.request
        self._sequences[request.id].remove(sequence)
        if not self._sequences[request.id]:
            del self._sequences[request.id]
            self._endings.forget(request.id)
        self._limits.ended(request.tenant, now)
        self._drain.ended(now)
        self._outbox.append((sequence, output))
        self._observer.finished(request, output, now - request.arrival)

    def _drop_cancelled(self) -> None:
        now = time.monotonic()
        for request_id, reason in self._endings.due(now, self._sequences):
            for sequence in list(self._sequences[request_id]):
                self._close(sequence, sequence.answer.cancel(reason, sequence.token_ids, now), now)

    def _fail(self, error: Exception) -> None:
        """The running requests are lost, their tokens may be half settled. With none running, admission itself failed.

        Once the engine is broken nobody waits for it any longer.
        """
        now = time.monotonic()
        with self._changed:
            self._failures += 1
            lost = self._scheduler.abandon_running()
            if self.broken or not lost:
                lost += self._scheduler.abandon_waiting()
            for sequence in lost:
                self._forget(sequence, sequence.answer.abandon(f"{type(error).__name__}: {error}"), now)

    def _deliver(self) -> None:
        outbox, self._outbox = self._outbox, []
        for sequence, output in outbox:
            deliver(sequence, output, self.cancel)
