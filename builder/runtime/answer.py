"""What one request has been given so far: tokens on their way out, the reason to end, and the count of the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from builder.decoding.control import State
from builder.runtime.exits import ExitState
from builder.runtime.request import Cancellation, DecodeStats, FinishReason, Output, Request, Usage
from builder.runtime.stops import StopScanner
from builder.text.detokenizer import CONTEXT_TOKENS
from builder.text.tokenizer import Tokenizer


@dataclass
class Tally:
    """The work of one request, counted while it runs."""

    histogram: list[int] = field(default_factory=list)  # [n]: rounds in which n drafted tokens were accepted
    drafted: int = 0
    target_passes: int = 0
    passes_avoided: int = 0  # tokens beyond the first of a pass: plain decoding has one a pass
    compute_seconds: float = 0.0
    state: State = State.PLAIN  # of the control, for this request, as of the latest decode step
    draft_length: int = 0  # K of that step
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache
    evicted_tokens: int = 0  # of prompt and answer, forgotten to make room in the context
    exit_layers: Counter[int] = field(default_factory=Counter)  # layers run -> tokens, where the pipeline has early exit
    left_early: int = 0
    pending_fills: int = 0  # tokens whose keys and values were made later
    exit_state: ExitState = ExitState.NONE  # as of the latest decode step

    @property
    def optimisation(self) -> str:
        return "early_exit" if self.left_early else "speculative" if self.histogram else "plain"

    def ran(self, left_at: int | None, depth: int, tokens: int) -> None:
        """So many tokens came from the exit at layer `left_at`, or from all `depth` layers."""
        self.exit_layers[left_at or depth] += tokens
        self.left_early += tokens * (left_at is not None)

    def round(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.histogram += [0] * (accepted + 1 - len(self.histogram))
        self.histogram[accepted] += 1


class Answer:
    """Decides where an answer ends: end-of-sequence token, stop string, max_tokens, full context.

    `index` is its place among the answers of one request.
    """

    def __init__(
        self, request: Request, eos_token_ids: frozenset[int], context: int, tokenizer: Tokenizer | None = None, index: int = 0
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.index = index
        self.cancellation: Cancellation | None = None
        self.tally = Tally()
        self.finish_reason: FinishReason | None = None
        self.first_token_at: float | None = None  # seconds, monotonic clock
        self.last_token_at: float | None = None
        self._eos = frozenset() if sampling.ignore_eos else eos_token_ids
        self._end = min(len(request.prompt_ids) + sampling.max_tokens, context)  # length at which the sequence is full
        self._scanner = StopScanner(sampling.stop, tokenizer) if sampling.stop and tokenizer is not None else None
        self._length = len(request.prompt_ids)
        self._sent = self._length  # tokens of the sequence that have left, the prompt included
        self._held = 0  # newest tokens that must not leave yet
        self._logprobs: list[dict[int, float]] = []  # of the tokens that have not left

    @property
    def remaining(self) -> int:
        """Tokens the answer may still grow by."""
        return self._end - self._length

    def take(self, token_ids: list[int], new: Sequence[int], logprobs: Sequence[dict[int, float]] = ()) -> int:
        """Append to token_ids the tokens of `new` up to the end of the answer; the rest of a round is dropped.

        Returns how many were taken; `finish_reason` is set once the answer has ended.
        """
        before = self._length
        for token in new:
            if self._scanner is not None:
                self._held = self._scanner.push(token_ids, token)
            token_ids.append(token)
            self._length += 1
            self.finish_reason = self._reason_to_end(token)
            if self.finish_reason is not None:
                break
        taken = self._length - before
        self.tally.passes_avoided += max(0, taken - 1)
        self._logprobs += logprobs[:taken]
        return taken

    def _reason_to_end(self, token: int) -> FinishReason | None:
        if token in self._eos or (self._scanner is not None and self._scanner.stopped):
            return FinishReason.STOP
        return FinishReason.LENGTH if self._length >= self._end else None

    def evicted(self, count: int) -> None:
        """`count` tokens in front of those that have not left were dropped from the sequence."""
        self.tally.evicted_tokens += count
        self._length -= count
        self._sent -= count
        self._end -= count

    def output(self, token_ids: list[int], now: float) -> Output | None:
        """The chunk that may leave now, with usage and stats if it is the last; None when every token is held back."""
        if self.finish_reason is not None:
            return self._last(token_ids, now)
        upto = self._length - self._held
        return self._chunk(token_ids, upto, now) if upto > self._sent else None

    def _last(self, token_ids: list[int], now: float) -> Output:
        chunk = self._chunk(token_ids, self._length, now)
        reason, why = self.finish_reason, self.cancellation
        return replace(chunk, finish_reason=reason, usage=self.usage(), stats=self.stats(), cancellation=why)

    def _chunk(self, token_ids: list[int], upto: int, now: float) -> Output:
        """The tokens up to length `upto` that have not left."""
        chunk = tuple(token_ids[self._sent : upto])
        context = tuple(token_ids[max(0, self._sent - CONTEXT_TOKENS) : self._sent])
        logprobs, self._logprobs = tuple(self._logprobs[: len(chunk)]), self._logprobs[len(chunk) :]
        self._sent = upto
        limit = -1
        if self._scanner is not None:
            limit = self._scanner.limit
            self._scanner.sent(len(chunk))
        if chunk:
            self.first_token_at = now if self.first_token_at is None else self.first_token_at
            self.last_token_at = now
        return Output(self.request.id, chunk, context, limit, logprobs, index=self.index)

    def cancel(self, reason: Cancellation, token_ids: list[int], now: float) -> Output:
        """The last chunk of an answer that is ended from outside, with the tokens that a stop string might have begun in."""
        self.finish_reason = FinishReason.TIMEOUT if reason is Cancellation.DEADLINE else FinishReason.CANCELLED
        self.cancellation = reason
        return self._last(token_ids, now)

    def abandon(self, error: str) -> Output:
        """The last chunk of an answer that failed: no tokens, what was used, and why."""
        self.finish_reason = FinishReason.ERROR
        usage, stats = self.usage(), self.stats()
        return Output(self.request.id, (), finish_reason=self.finish_reason, usage=usage, stats=stats, error=error, index=self.index)

    def usage(self) -> Usage:
        """The answers of one request share its prompt: the first has it in its usage."""
        prompt = len(self.request.prompt_ids)
        made = self._length + self.tally.evicted_tokens - prompt
        return Usage(0, made) if self.index else Usage(prompt, made, self.tally.cached_tokens)

    def stats(self) -> DecodeStats:
        tally, arrival = self.tally, self.request.arrival
        first, last = self.first_token_at, self.last_token_at
        return DecodeStats(
            optimisation=tally.optimisation,
            num_spec_steps=sum(tally.histogram),
            num_draft_tokens=tally.drafted,
            num_accepted_draft_tokens=sum(n * rounds for n, rounds in enumerate(tally.histogram)),
            acceptance_histogram=tuple(tally.histogram),
            target_passes=tally.target_passes,
            target_passes_avoided=tally.passes_avoided,
            compute_seconds=tally.compute_seconds,
            time_to_first_token=first - arrival if first is not None else 0.0,
            decode_seconds=last - first if first is not None and last is not None else 0.0,
            state=tally.state,
            draft_length=tally.draft_length,
            rollout_arm=self.request.rollout_arm,
            evicted_tokens=tally.evicted_tokens,
            exit_layers=dict(sorted(tally.exit_layers.items())),
            pending_fills=tally.pending_fills,
            early_exit=tally.exit_state,
        )
