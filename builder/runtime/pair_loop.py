"""The rounds of a sequence over two models that batch by themselves: how many tokens to draft, what was won, what leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import aclosing

from builder.decoding.control import State
from builder.errors import EngineError
from builder.runtime.answer import Tally
from builder.runtime.exits import ExitState, exit_state
from builder.runtime.observer import Observer, tell_tokens
from builder.runtime.pair_decoder import PairDecoder, Won
from builder.runtime.pair_exit import PairExit
from builder.runtime.places import Places
from builder.runtime.policy import Policy
from builder.runtime.request import Output
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import ControlReport, SpeculationControl
from builder.runtime.steps import Prefill, Round, Step, StepObserver
from builder.runtime.switches import Switches


class PairLoop:
    """Belongs to one event loop, but for `allow` and `report`. `emit` takes the outputs, the last one of an answer included."""

    def __init__(
        self,
        decoder: PairDecoder,
        settings: EngineSettings,
        places: Places,
        policy: Policy,
        observer: Observer,
        emit: Callable[[Sequence, Output], None],
        exit_at: PairExit | None = None,
    ) -> None:
        self.steps: StepObserver | None = None
        self._decoder = decoder
        self._drafts = settings.proposer != "none"
        self._places = places
        self._policy = policy
        self._observer = observer
        self._emit = emit
        self._exit = exit_at
        self._lock = threading.Lock()  # guards what follows
        self._control = SpeculationControl(settings, own_draft_cache=False)
        self._lengths: dict[Sequence, int] = {}  # that were not used yet
        self._switches = Switches()

    def allow(self, switches: Switches) -> None:
        """What the operator allows from the next round on."""
        with self._lock:
            self._switches, self._lengths = switches, {}
            self._control.allow(time.monotonic(), switches.speculation)

    def report(self) -> ControlReport:
        with self._lock:
            return self._control.report()

    async def run(self, sequence: Sequence) -> None:
        """Until the answer has ended. EngineError when the target fails.

        A prompt's first token comes without a draft: nobody waits for the draft to read the prompt too.
        """
        answer = sequence.answer
        while answer.finish_reason is None:
            began, limit, prompt = time.monotonic(), self._draft_limit(sequence), _unread(sequence)
            exit_at = self._exit if self._exit_state(sequence) is ExitState.ON else None
            if self._is_plain(sequence, limit):
                await self._stream(sequence)
            else:
                won = await self._decoder.round(sequence, 0 if prompt else limit, exit_at)
                self._settle(sequence, won, began, prompt)

    def _is_plain(self, sequence: Sequence, limit: int) -> bool:
        """Whether the rest is streamed: this is neither a plain step between drafts nor a seeded answer's first token, never drafted."""
        if limit or sequence.answer.tally.state is not State.PLAIN:
            return False
        return sequence.has_answered or not (self._control.keeps_length(sequence) and self._speculates(sequence))

    async def _stream(self, sequence: Sequence) -> None:
        """Plain decoding, until the answer ends or drafts are wanted again."""
        began, prompt = time.monotonic(), _unread(sequence)
        async with aclosing(self._decoder.stream(sequence, sequence.answer.remaining)) as stream:
            async for won in stream:
                self._settle(sequence, won, began, prompt)
                if sequence.answer.finish_reason is not None or self._draft_limit(sequence):
                    return
                self._exit_state(sequence)
                began, prompt = time.monotonic(), 0
        raise EngineError("the target ended the answer before its time")

    def _draft_limit(self, sequence: Sequence) -> int:
        """Tokens to draft next. A round of K drafts emits up to K+1 tokens: more than the answer can take is work thrown away.

        The control is asked for all that run, as by a loop with common steps, and again when one of them has used its share; for an
        answer whose lengths must not hang on the others, for itself.
        """
        with self._lock:
            if self._control.keeps_length(sequence):
                (length,) = self._control.lengths(time.monotonic(), [sequence], self._speculates)
            else:
                length = self._shared_length(sequence)
        return max(0, min(length, sequence.answer.remaining - 1))

    def _shared_length(self, sequence: Sequence) -> int:
        if sequence not in self._lengths:
            running = self._places.running
            self._lengths = dict(zip(running, self._control.lengths(time.monotonic(), running, self._speculates), strict=True))
        return self._lengths.pop(sequence)

    def _speculates(self, sequence: Sequence) -> bool:
        """With a repetition penalty no drafts: whether the backend applies it at each drafted position is written nowhere."""
        request = sequence.request
        allowed = request.speculation and self._switches.speculation_for(request.tenant)
        return allowed and self._drafts and self._decoder.has_draft and request.sampling.repetition_penalty == 1.0

    def _exit_state(self, sequence: Sequence) -> ExitState:
        """Whether drafted tokens may leave in the next step; `tally` says so in the answer."""
        request = sequence.request
        with self._lock:
            allowed = self._switches.early_exit_for(request.tenant)
        state = exit_state(request.sampling, self._exit, asked=request.early_exit, allowed=allowed)
        sequence.answer.tally.exit_state = state
        return state

    def _settle(self, sequence: Sequence, won: Won, began: float, prompt: int) -> None:
        """Count a reply, append it, and emit. `prompt` tokens had to be read first."""
        answer, tally, now, running = sequence.answer, sequence.answer.tally, time.monotonic(), self._places.running
        tally.target_passes += 1
        tally.compute_seconds += won.target.share + (won.drafting.share if won.drafting else 0.0)
        if self.steps is not None and self.steps.active:
            left_at = self._exit.layer if self._exit is not None and won.left else None
            self.steps.step_done(_step(sequence, won, began, now, prompt, left_at))
        with self._lock:
            self._control.round_done(sequence, won.limit, won.draft, won.left + won.accepted)  # all these are passes saved
            if not prompt:  # how long a prompt takes says nothing of a round
                self._control.flown(won, len(running))
        if won.checked:
            tally.round(won.checked, won.accepted)
            self._observer.round_done(won.checked, won.accepted)
        taken = answer.take(sequence.token_ids, won.token_ids)
        self._policy.gave(sequence, taken)
        self._count_layers(tally, min(won.left, taken), taken)
        going_on = len(running) - (answer.finish_reason is not None)
        self._observer.pass_done(going_on, self._places.num_waiting, 0, 0, 0)  # the caches are the backend's, and so are their metrics
        before, output = answer.last_token_at, answer.output(sequence.token_ids, now)
        if output is not None:
            tell_tokens(self._observer, sequence.request, output, before, now)
            self._emit(sequence, output)

    def _count_layers(self, tally: Tally, left: int, taken: int) -> None:
        """Of `taken` tokens the first `left` left early. The pass that gave the others made their keys and values."""
        if self._exit is None:
            return
        for layer, tokens in ((self._exit.layer, left), (None, taken - left)):
            if tokens:
                tally.ran(layer, self._exit.depth, tokens)
        tally.pending_fills += left


def _unread(sequence: Sequence) -> int:
    """Tokens of the prompt that no pass has run, but for a prompt of one token, which is decoded as any other."""
    return 0 if sequence.has_answered or len(sequence.token_ids) == 1 else len(sequence.token_ids)


def _step(sequence: Sequence, won: Won, began: float, ended: float, prompt: int, left_at: int | None) -> Step:
    request, index = sequence.request.id, sequence.answer.index
    drafted = began + (won.drafting.seconds if won.drafting else 0.0)
    if prompt:
        return Step(began, drafted, ended, (Prefill(request, index, prompt),), ())
    round_ = Round(request, index, won.limit, won.checked, won.accepted, len(won.token_ids), left_at)
    return Step(began, drafted, ended, (), (round_,))
