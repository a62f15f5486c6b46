"""Which tenants are decided for alone: those whose drafts are kept clearly more, or less, often than everybody's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from builder.decoding.control.acceptance_window import AcceptanceWindow
from builder.decoding.control.member import Member, SamplingClass
from builder.decoding.control.settings import ControlSettings

EVERY = 64  # rounds of a tenant between two comparisons
APART = 0.15  # least difference of the chance that a judged token is kept
TOGETHER = 0.05  # below it a tenant is one of all again
Z = 3.0  # standard errors that the difference must be


@dataclass(frozen=True)
class Scope:
    """Drafts that are copied from the text are kept more or less often than the draft model's, and cost less: a scope of their own."""

    sampling: SamplingClass
    tenant: str = ""  # "" for all that have no scope of their own
    copied: bool = False

    @property
    def name(self) -> str:
        parts = [str(self.sampling), "copied" if self.copied else "", f"tenant {self.tenant}" if self.tenant else ""]
        return ", ".join(filter(None, parts))

    @property
    def other_kind(self) -> Scope:
        return replace(self, copied=not self.copied)

    @property
    def drafted(self) -> Scope:
        """The draft model's, for the same sequences."""
        return replace(self, copied=False)


class HasWindow(Protocol):
    window: AcceptanceWindow


class Tenants:
    """The names come from an allow-list, so there are few."""

    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings
        self._windows: dict[Scope, AcceptanceWindow] = {}
        self._rounds: dict[Scope, int] = {}
        self._alone: set[Scope] = set()

    def scope(self, member: Member) -> Scope:
        own, everybody = _scopes(member)
        return own if own in self._alone else everybody

    def round_done(self, member: Member, controllers: Mapping[Scope, HasWindow], offered: int, drafted: int, accepted: int) -> None:
        own, everybody = _scopes(member)
        if own not in self._windows:
            self._windows[own] = AcceptanceWindow(self._settings.max_draft_tokens, self._settings.memory)
        self._windows[own].add(offered, drafted, accepted)
        self._rounds[own] = self._rounds.get(own, 0) + 1
        if self._rounds[own] % EVERY == 0 and own != everybody and everybody in controllers:
            self._compare(own, self._windows[own], controllers[everybody].window)

    def _compare(self, own: Scope, mine: AcceptanceWindow, theirs: AcceptanceWindow) -> None:
        if not mine.judged or not theirs.judged:
            return
        apart = abs(mine.kept / mine.judged - theirs.kept / theirs.judged)
        if own in self._alone:
            if apart < TOGETHER:
                self._alone.discard(own)
        elif apart > APART and apart > Z * _error(mine, theirs):
            self._alone.add(own)


def _scopes(member: Member) -> tuple[Scope, Scope]:
    return Scope(member.sampling, member.tenant, member.copies), Scope(member.sampling, "", member.copies)


def _error(a: AcceptanceWindow, b: AcceptanceWindow) -> float:
    """Standard error of the difference of two shares, with their common share. A fading window of weight n tells as much as 2n rounds."""
    share = (a.kept + b.kept) / (a.judged + b.judged)
    return math.sqrt(share * (1 - share) * (1 / (2 * a.judged) + 1 / (2 * b.judged)))
