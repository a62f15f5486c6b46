"""Plain decoding: nothing is ever proposed."""

from __future__ import annotations

from collections.abc import Sequence

from builder.decoding.proposers.interface import Context, Draft, DraftModel
from builder.decoding.proposers.registry import register


@register("none", needs_draft_model=False)
class NoProposer:
    def propose(self, contexts: Sequence[Context], model: DraftModel | None) -> list[Draft]:  # noqa: ARG002 - the interface's names
        return [Draft() for _ in contexts]
