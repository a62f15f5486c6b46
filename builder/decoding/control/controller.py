"""One scope's state and draft length: falls back when drafts do not pay, probes now and then, comes back when they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from builder.decoding.control.acceptance_window import AcceptanceWindow
from builder.decoding.control.best_lately import BestLately, Paid
from builder.decoding.control.settings import ControlSettings
from builder.decoding.control.state import Reason, State, Transition

# (K, survival, sequences of this scope) -> expected seconds per token of the batch; None: unknown
Quote = Callable[[int, Sequence[float], int], float | None]

STEADY = 10.0  # cool-downs that speculation must last for a fall-back to be a new one: then waiting starts from the first cool-down
HOPELESS = 4  # rounds of a probe after which nothing kept is answer enough
SHRUNK = 0.75  # of the sequences at a fall-back: so few are another load, one less is the same
PROBE_STEPS = 4  # steps a probe has at least, so that its costs are measured more than once


class Controller:
    """`draft_tokens` is K in force. `report` hears of every transition."""

    def __init__(self, scope: str, settings: ControlSettings, now: float, report: Callable[[Transition], None]) -> None:
        self.scope = scope
        self.state = State.SPECULATING
        self.draft_tokens = settings.max_draft_tokens
        self.window = AcceptanceWindow(settings.max_draft_tokens, settings.memory)
        self._settings = settings
        self._report = report
        self._since = now
        self._wait = settings.cool_down  # until a probe
        self._pause = settings.cool_down  # until costs alone may bring drafts back
        self._rounds = 0
        self._because = Reason.LOW_ACCEPTANCE  # of the latest fall-back
        self._best_lately = BestLately(now, Paid(0.0, self.window.survival(), 1))
        self._left_with = 0  # sequences at the latest fall-back
        self._probe_rounds = self._probe_kept = self._probe_steps = 0
        self._probe_lost = 0.0  # seconds

    def round_done(self, offered: int, drafted: int, accepted: int) -> None:
        self.window.add(offered, drafted, accepted)
        self._rounds += 1
        if self.state is State.PROBING:
            self._probe_rounds += 1
            self._probe_kept += accepted

    def charge(self, seconds: float) -> None:
        """A step of a probe took so much longer than its tokens would have taken plainly."""
        self._probe_lost += max(0.0, seconds)

    def decide(self, now: float, sequences: int, quote: Quote) -> None:
        """Look at costs and acceptance again, for a batch with `sequences` sequences of this scope."""
        survival = self.window.survival()
        costs = [quote(k, survival, sequences) for k in range(self._settings.max_draft_tokens + 1)]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            return
        best = min(range(len(known)), key=known.__getitem__)
        if self.state is State.SPECULATING:
            self._adjust(now, sequences, known, best, quote)
        elif self.state is State.PROBING:
            self._judge(now, sequences, known, best, quote)
        else:
            self._return(now, sequences, known, best)

    def resume(self, now: float) -> None:
        """The operator allows drafts again: try them at once."""
        self.state, self.draft_tokens = State.SPECULATING, self._settings.max_draft_tokens
        self._since = now
        self._wait = self._pause = self._settings.cool_down
        self.window.fade(self._settings.fewest_rounds)

    def _adjust(self, now: float, sequences: int, costs: Sequence[float], best: int, quote: Quote) -> None:
        settings, current = self._settings, self.draft_tokens
        if best:
            self._best_lately.add(now, Paid(costs[0] / costs[best], self.window.survival(), sequences))
        margin = settings.margin_down if best < current else settings.margin_up
        if best == current or costs[best] * (1 + margin) >= costs[current]:
            return
        if best:
            self.draft_tokens = best
        elif self.window.rounds >= settings.fewest_rounds:
            lasted, reason = now - self._since, self._reason(sequences, quote)
            self._pause = settings.cool_down if lasted > STEADY * settings.cool_down else min(2 * self._pause, settings.rearm_after)
            # a batch that shrinks brings drafts back at once: under a steady load a probe is for slow changes only
            self._wait = settings.rearm_after if reason is Reason.LOAD else self._pause
            self._fall_back(now, sequences, reason)

    def _reason(self, sequences: int, quote: Quote) -> Reason:
        """What has changed since drafts paid best: would they again with the acceptance of then, or with the batch of then? More with one
        than with the other, or with neither."""
        paid = self._best_lately.paid
        by_acceptance = self._gain(paid.survival, sequences, quote)
        by_load = self._gain(self.window.survival(), paid.sequences, quote) if sequences > paid.sequences else 1.0
        if max(by_acceptance, by_load) <= 1.0:
            return Reason.COST
        return Reason.LOW_ACCEPTANCE if by_acceptance > by_load else Reason.LOAD

    def _gain(self, survival: Sequence[float], sequences: int, quote: Quote) -> float:
        """Of drafts over plain decoding, at the best K."""
        plain, *drafting = (quote(k, survival, sequences) or 0.0 for k in range(self._settings.max_draft_tokens + 1))
        best = min(drafting)
        return plain / best if best else 1.0

    def _fall_back(self, now: float, sequences: int, reason: Reason) -> None:
        self._because, self._left_with = reason, sequences
        self._move(now, State.PLAIN, 0, reason)

    def _return(self, now: float, sequences: int, costs: Sequence[float], best: int) -> None:
        waited, settings = now - self._since, self._settings
        pays = best > 0 and costs[best] * (1 + settings.margin_up) < costs[0]
        shrunk = sequences <= SHRUNK * self._left_with
        if pays and self._because is not Reason.LOW_ACCEPTANCE and (waited >= self._pause or shrunk):
            self._move(now, State.SPECULATING, best, Reason.LOAD if shrunk else Reason.COST)
        elif waited >= self._wait:
            self.window.fade(1)
            self._probe_rounds = self._probe_kept = self._probe_steps = 0
            self._probe_lost = 0.0
            self._move(now, State.PROBING, min(settings.probe_draft_tokens, settings.max_draft_tokens), Reason.PROBE)

    def _judge(self, now: float, sequences: int, costs: Sequence[float], best: int, quote: Quote) -> None:
        settings = self._settings
        self._probe_steps += 1
        hopeless = self._probe_rounds >= HOPELESS and not self._probe_kept
        whole = self._probe_rounds >= settings.fewest_rounds and self._probe_steps >= PROBE_STEPS
        # without a kept token nothing can have paid: on a busy machine a few steps may seem cheaper than plain ones all the same
        if whole and best and self._probe_kept and costs[best] * (1 + settings.margin_up) < costs[0]:
            self._move(now, State.SPECULATING, best, Reason.RECOVERED)
        elif whole or hopeless:
            longer = min(2 * self._wait, settings.rearm_after)
            self._wait = max(longer, self._probe_lost / settings.probe_share)
            self._fall_back(now, sequences, self._reason(sequences, quote))

    def _move(self, now: float, state: State, draft_tokens: int, reason: Reason) -> None:
        old, self.state, self.draft_tokens, self._since = self.state, state, draft_tokens, now
        self._report(Transition(now, self.scope, old, state, reason, draft_tokens, round(self.window.chances()[0], 3), self._rounds))
