"""The loop's side of draft-length control: sequences become members of the control's batch, measured steps become costs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from builder.decoding.control import ControlSettings, Governor, Member, State, Transition, sampling_class
from builder.decoding.proposers import Draft
from builder.decoding.proposers.ngram import lookup
from builder.decoding.stopping import StopRule
from builder.runtime.pair_decoder import Won
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings
from builder.runtime.step_costs import Kind, StepCosts

# Decoding sequences wait for the prompts that share their pass: it may take so many times what it would without them. The floor is an
# inter-token p99 of 4 medians beside a neighbour's prefill.
PREFILL_STRETCH = 2.0
UNMEASURED_ROWS = 32  # of prompts in a pass, before any pass has shown what rows cost
STALL = 3.0  # a pass longer than so many times its expected time was held up: it counts as that long and no longer


@dataclass(frozen=True)
class ControlReport:
    """`draft_tokens` is the largest K in force; `transitions` those since the report before."""

    state: State
    draft_tokens: int
    transitions: tuple[Transition, ...]


class SpeculationControl:
    """One for each engine; called by the stepping thread, or under the engine's lock."""

    def __init__(self, settings: EngineSettings, *, own_draft_cache: bool) -> None:
        self._own_draft_cache = own_draft_cache
        self._has_choice = settings.proposer == "hybrid"
        self._most = settings.max_draft_tokens if settings.proposer != "none" else 0
        self._costs = StepCosts()
        wanted = ControlSettings(
            max_draft_tokens=self._most,
            adaptive=settings.adaptive,
            early_stop=settings.early_stop,
            rearm_after=settings.rearm_after,
        )
        self._governor = Governor(wanted, self._costs)

    def allow(self, now: float, allowed: bool) -> None:
        self._governor.allow(now, allowed)

    def report(self) -> ControlReport:
        governor = self._governor
        return ControlReport(governor.state, governor.draft_tokens, tuple(governor.take_transitions()))

    def lengths(self, now: float, decoding: Items[Sequence], allowed: Callable[[Sequence], bool]) -> list[int]:
        """K for each decoding sequence, 0 where it is not allowed; `tally` says so in the answer."""
        members = {s: self._member(s, self._repeats(s)) for s in decoding if allowed(s) and not self.keeps_length(s)}
        given = self._governor.lengths(now, list(members.values()), len(decoding) - len(members))
        chosen = dict(zip(members, given, strict=True))
        for sequence in decoding:
            tally = sequence.answer.tally
            if sequence in chosen:
                tally.draft_length, tally.state = chosen[sequence], self._governor.state_of(members[sequence])
                sequence.may_copy = self._governor.may_copy(members[sequence])
            else:
                tally.draft_length = self._most * (allowed(sequence) and sequence.has_answered)
                tally.state = State.SPECULATING if tally.draft_length else State.PLAIN
        return [sequence.answer.tally.draft_length for sequence in decoding]

    def stop_rule(self, sequence: Sequence) -> StopRule | None:
        """Where its draft in this step ends early; None: at its limit."""
        return None if self.keeps_length(sequence) else self._governor.stop_rule(self._member(sequence, False))

    def keeps_length(self, sequence: Sequence) -> bool:
        """A sampled answer with a seed of the client's must come out the same again, and it depends on where drafts end: a token that was
        drafted comes from another random number than one that was not. Its K never changes. Its first token is never drafted, since that
        hangs on whether the prefix cache left one row of the prompt to run or more."""
        return not sequence.request.sampling.greedy and sequence.request.sampling.seed is not None

    def _member(self, sequence: Sequence, copies: bool) -> Member:
        return Member(sampling_class(sequence.request.sampling), sequence.request.tenant, self._backlog(sequence), copies)

    def _repeats(self, sequence: Sequence) -> bool:
        """Whether its draft may be copied or made by the draft model."""
        return self._has_choice and bool(lookup(sequence.token_ids, 1))

    def _backlog(self, sequence: Sequence) -> int:
        return len(sequence.token_ids) - 1 - sequence.draft_computed if self._own_draft_cache else 0

    def is_caught_up(self, limits: Items[tuple[Sequence, int]]) -> bool:
        """Whether the drafts' time, measured next, will be that of draft steps alone. After a full acceptance the draft's own cache
        lacks one token more, which rides along in the first step."""
        return all(self._backlog(sequence) <= 1 for sequence, limit in limits if limit)

    def drafted(self, drafts: Items[Draft], seconds: float) -> None:
        """The drafts of a round, all steps together. Copying is not worth counting."""
        made = [len(draft) for draft in drafts if not draft.copied]
        steps = max(made, default=0)
        if steps:
            record_draft(self._costs, round(sum(made) / steps), steps, seconds)

    def round_done(self, sequence: Sequence, offered: int, draft: Draft, accepted: int) -> None:
        if offered and not self.keeps_length(sequence):
            copied = self._has_choice and draft.copied
            self._governor.round_done(self._member(sequence, copied), offered, len(draft), accepted, draft.confidences)

    def rows_beside(self, decoding_rows: int, most: int) -> int:
        """Rows of a pass that decodes so many and fills up with prompts, so that who decodes waits PREFILL_STRETCH times as long."""
        decoded, mixed = self._costs.span("target"), self._costs.span("mixed")
        alone = self._costs.seconds("target", decoding_rows)
        if alone is None or decoded is None or decoded[0] > decoding_rows or mixed is None:  # nobody has seen them alone, or with prompts
            return min(most, decoding_rows + UNMEASURED_ROWS)
        known = max(2 * int(mixed[1]), decoding_rows + UNMEASURED_ROWS)  # a line through two small passes may point anywhere
        return max(decoding_rows, self._costs.rows_within("mixed", PREFILL_STRETCH * alone, min(most, known)))

    def prefilled(self, rows: int, seconds: float) -> None:
        """A pass with prompts in it. Not held against stalls: nothing is known yet of passes as large as the first ones."""
        self._costs.record("mixed", rows, seconds)

    def decoded(self, rows: int, target_seconds: float, draft_seconds: float, tokens: int) -> None:
        """A step without prefill: a target pass of so many rows and all that is done on the host, and the tokens won."""
        record(self._costs, "target", rows, target_seconds)
        self._governor.step_done(target_seconds + draft_seconds, tokens)

    def flown(self, won: Won, running: int) -> None:
        """A round of one sequence beside `running - 1` others, which have rounds of their own meanwhile: its part of their time is its
        own."""
        target, drafting = won.target, won.drafting
        record(self._costs, "target", target.together, target.seconds)
        seconds = target.seconds
        if drafting is not None and len(won.draft):
            record_draft(self._costs, drafting.together, len(won.draft), drafting.seconds)
            seconds += drafting.seconds
        self._governor.step_done(seconds / max(1, running), len(won.token_ids))


def record(costs: StepCosts, kind: Kind, rows: int, seconds: float) -> None:
    costs.record(kind, rows, _unstalled(seconds, costs.seconds(kind, rows)))


def record_draft(costs: StepCosts, sequences: int, steps: int, seconds: float) -> None:
    costs.record_draft(sequences, steps, _unstalled(seconds, costs.draft_seconds(sequences, steps)))


def _unstalled(seconds: float, expected: float | None) -> float:
    return seconds if expected is None else min(seconds, STALL * expected)
