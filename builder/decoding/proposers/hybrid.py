"""Prompt lookup where the text repeats itself, the draft model elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from builder.decoding.proposers.draft_model import DraftModelProposer
from builder.decoding.proposers.interface import Context, Draft, DraftModel
from builder.decoding.proposers.ngram import NgramProposer
from builder.decoding.proposers.registry import register


@register("hybrid", needs_draft_model=True)
class HybridProposer:
    def __init__(self) -> None:
        self._free = NgramProposer()
        self._paid = DraftModelProposer()

    def propose(self, contexts: Sequence[Context], model: DraftModel | None) -> list[Draft]:
        drafts = self._free.propose(contexts, model)
        missed = [place for place, draft in enumerate(drafts) if not draft.token_ids]
        for place, draft in zip(missed, self._paid.propose([contexts[place] for place in missed], model), strict=True):
            drafts[place] = draft
        return drafts
