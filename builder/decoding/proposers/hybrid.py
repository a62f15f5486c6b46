"""Prompt lookup where the text repeats itself, the draft model elsewhere, and also there where copies do not pay."""

from __future__ import annotations

from collections.abc import Sequence

from builder.decoding.proposers.draft_model import DraftModelProposer
from builder.decoding.proposers.interface import Context, Draft, DraftModel
from builder.decoding.proposers.ngram import NgramProposer
from builder.decoding.proposers.registry import register


@register("hybrid", needs_draft_model=True)
class HybridProposer:
    def __init__(self) -> None:
        self._copies = NgramProposer()
        self._model = DraftModelProposer()

    def propose(self, contexts: Sequence[Context], model: DraftModel | None) -> list[Draft]:
        copying = [context for context in contexts if context.may_copy]
        copied = zip(copying, self._copies.propose(copying, model), strict=True)
        drafts = {context.index: draft for context, draft in copied if len(draft)}
        missed = [context for context in contexts if context.index not in drafts]
        drafts |= {context.index: draft for context, draft in zip(missed, self._model.propose(missed, model), strict=True)}
        return [drafts[context.index] for context in contexts]
