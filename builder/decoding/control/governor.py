"""The control of a pipeline: one Controller for each class of sampling, and for a tenant whose acceptance stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from builder.decoding.control.controller import Controller
from builder.decoding.control.early_stop import EarlyStop
from builder.decoding.control.member import Member
from builder.decoding.control.round_cost import Costs, Share, seconds_per_token
from builder.decoding.control.settings import ControlSettings
from builder.decoding.control.state import Reason, State, Transition
from builder.decoding.control.tenants import Scope, Tenants
from builder.decoding.stopping import StopRule

PIPELINE = "pipeline"
FIRST_PLAIN = 16  # rounds, of all sequences, before the first plain step, or
FIRST_STEPS = 4  # so many steps: without a plain one there is nothing to compare with
PLAIN_STEPS = 2  # plain steps in a row: the first finds caches full of the draft's weights
NEAR = 64  # tokens of backlog that a probe may catch up on


@dataclass(frozen=True)
class _Plan:
    """What the sequences of a scope draft, or might."""

    scope: Scope
    draft_tokens: int
    survival: Sequence[float]
    sequences: int


class Governor:
    """Asked once a step for draft lengths, and told afterwards what the step cost and won. Calls come from one thread."""

    def __init__(self, settings: ControlSettings, costs: Costs) -> None:
        self.settings = settings
        self.state = State.SPECULATING if settings.max_draft_tokens else State.PLAIN  # of the pipeline, as of the latest batch
        self.draft_tokens = settings.max_draft_tokens  # the largest K in force in the latest batch
        self.allowed = True  # by the operator
        self._costs = costs
        self._early_stop = EarlyStop(costs)
        self._controllers: dict[Scope, Controller] = {}
        self._tenants = Tenants(settings)
        self._transitions: list[Transition] = []
        self._batch: tuple[Counter[Scope], int] = Counter(), 0  # of the latest decision
        self._undecided = 0  # steps since then
        self._until_plain = FIRST_PLAIN  # rounds until the first plain step, then steps until the next
        self._compared = False

    def take_transitions(self) -> list[Transition]:
        taken, self._transitions = self._transitions, []
        return taken

    def _note(self, found: Transition) -> None:
        """Of a controller. Not the list's own `append`: the list is another one after each `take_transitions`."""
        self._transitions.append(found)

    def allow(self, now: float, allowed: bool) -> None:
        """The operator's word for the whole pipeline."""
        if allowed == self.allowed:
            return
        self.allowed = allowed
        old, self.state = self.state, State.SPECULATING if allowed else State.PLAIN
        self.draft_tokens = self.settings.max_draft_tokens if allowed else 0
        for controller in self._controllers.values() if allowed else ():
            controller.resume(now)
        if old is not self.state:
            self._transitions.append(Transition(now, PIPELINE, old, self.state, Reason.OPERATOR, self.draft_tokens, 0.0, 0))

    def lengths(self, now: float, members: Sequence[Member], plain_rows: int) -> list[int]:
        """K for each sequence that may be drafted for; `plain_rows` others decode in the same step."""
        if not self.allowed or not self.settings.max_draft_tokens:
            return [0] * len(members)
        if not self.settings.adaptive or not members:
            return [self.settings.max_draft_tokens] * len(members)
        scopes = [self._tenants.scope(member) for member in members]
        self._decide(now, Counter(scopes), plain_rows)
        if self._plain_is_due(len(members)):
            return [0] * len(members)
        return self._given(members, scopes)

    def stop_rule(self, member: Member) -> StopRule | None:
        """Where the drafts of the latest `lengths` end early."""
        return self._early_stop.rules.get(member.sampling)

    def round_done(self, member: Member, offered: int, drafted: int, accepted: int, confidences: Sequence[float] = ()) -> None:
        """`offered` tokens might be drafted for it; so many were, this confidently, and so many kept."""
        self._early_stop.judged(member.sampling, confidences, accepted)
        self._controller(self._tenants.scope(member)).round_done(offered, drafted, accepted)
        self._tenants.round_done(member, self._controllers, offered, drafted, accepted)

    def step_done(self, seconds: float, tokens: int) -> None:
        """The step that `lengths` was asked for took so long and won so many tokens."""
        probing = [scope for scope in self._batch[0] if self._controller(scope).state is State.PROBING]
        if probing and tokens:
            counts, plain_rows = self._batch
            plain = seconds_per_token((), counts.total() + plain_rows, self._costs) or 0.0
            for scope in probing:
                self._controllers[scope].charge((seconds - tokens * plain) / len(probing))

    def may_copy(self, member: Member) -> bool:
        """Whether its draft is to be copied from its text wherever that repeats itself, as of the latest `lengths`; else the draft model
        makes it there too."""
        copied = self._controllers.get(self._tenants.scope(replace(member, copies=True)))
        return copied is None or copied.draft_tokens > 0  # no text has repeated itself so far

    def state_of(self, member: Member) -> State:
        if not self.allowed or not self.settings.max_draft_tokens:
            return State.PLAIN
        if not self.settings.adaptive:
            return State.SPECULATING
        return self._controller(self._in_force(self._tenants.scope(member))).state

    def _in_force(self, scope: Scope) -> Scope:
        """The one that decides for the sequences of `scope`: while copies do not pay, that of the draft model."""
        return scope.drafted if scope.copied and not self._controller(scope).draft_tokens else scope

    def _decide(self, now: float, counts: Counter[Scope], plain_rows: int) -> None:
        """At every eighth step, at every step of a probe, and when the batch is another."""
        self._undecided += 1
        controllers = {scope: self._controller(scope, now) for scope in counts}
        probing = any(controller.state is State.PROBING for controller in controllers.values())
        same = (counts.total(), plain_rows) == (self._batch[0].total(), self._batch[1])
        if not probing and self._undecided < self.settings.decide_every and same:
            return
        self._batch, self._undecided = (counts, plain_rows), 0
        for scope, controller in controllers.items():

            def quote(k: int, survival: Sequence[float], sequences: int, scope: Scope = scope) -> float | None:
                return seconds_per_token(self._shares(counts, _Plan(scope, k, survival, sequences)), plain_rows, self._costs)

            controller.decide(now, counts[scope], quote)
        # a text repeats itself at one step and not at the next: what is shown is of both kinds of drafts
        shown = [self._controllers[s] for scope in counts for s in (scope, scope.other_kind) if s in self._controllers]
        self.draft_tokens = max(controller.draft_tokens for controller in shown)
        states = {controller.state for controller in shown}
        self.state = next(state for state in (State.SPECULATING, State.PROBING, State.PLAIN) if state in states)
        if self.settings.early_stop:  # a probe drafts in full: it asks about acceptance
            classes = dict.fromkeys((scope.sampling for scope in controllers), False)
            classes |= {scope.sampling: True for scope, c in controllers.items() if c.state is State.SPECULATING}
            self._early_stop.decide(classes, self._shares(counts), plain_rows)

    def _shares(self, counts: Counter[Scope], trial: _Plan | None = None) -> list[Share]:
        """The batch with the K in force, or with that of a trial for one scope. Where copies do not pay the draft model drafts."""
        plans = {scope: self._plan(scope, sequences) for scope, sequences in counts.items()}
        if trial is not None:
            plans[trial.scope] = trial
        for idle in [plan for scope, plan in plans.items() if scope.copied and not plan.draft_tokens]:
            del plans[idle.scope]
            by_model = plans.get(idle.scope.drafted) or self._plan(idle.scope.drafted, 0)
            plans[by_model.scope] = replace(by_model, sequences=by_model.sequences + idle.sequences)
        return [
            Share(plan.sequences, plan.draft_tokens, tuple(plan.survival), self._controller(scope).window.reach(), scope.copied)
            for scope, plan in plans.items()
        ]

    def _plan(self, scope: Scope, sequences: int) -> _Plan:
        controller = self._controller(scope)
        return _Plan(scope, controller.draft_tokens, controller.window.survival(), sequences)

    def _plain_is_due(self, rounds: int) -> bool:
        """Two plain steps after every hundred: drafts are judged by what plain steps cost now, not long ago."""
        if not self.draft_tokens or self.state is not State.SPECULATING:
            return False
        if not self._compared:
            self._until_plain = max(0, self._until_plain - max(rounds, FIRST_PLAIN // FIRST_STEPS))
            self._compared = not self._until_plain
            return False
        self._until_plain -= 1
        if self._until_plain < -PLAIN_STEPS:
            self._until_plain = self.settings.plain_every
            self._undecided = self.settings.decide_every  # the next step knows what plain costs now
        return self._until_plain < 0

    def _given(self, members: Sequence[Member], scopes: Sequence[Scope]) -> list[int]:
        """A probe leaves out sequences whose draft has much to catch up on, unless all have: then the nearest goes alone."""
        scopes = [self._in_force(scope) for scope in scopes]
        given = []
        nearest: dict[Scope, int] = {}
        for member, scope in zip(members, scopes, strict=True):
            nearest[scope] = min(member.backlog, nearest.get(scope, member.backlog))
        for member, scope in zip(members, scopes, strict=True):
            controller = self._controller(scope)
            far = not scope.copied and controller.state is State.PROBING and member.backlog > max(NEAR, nearest[scope])
            given.append(0 if far else controller.draft_tokens)
        return given

    def _controller(self, scope: Scope, now: float = 0.0) -> Controller:
        if scope not in self._controllers:
            self._controllers[scope] = Controller(scope.name, self.settings, now, self._note)
        return self._controllers[scope]
