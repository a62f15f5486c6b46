"""Drafts by the target's own first layers and an exit head, which end where the head is not sure enough ("self-speculation").

The layers that a draft has run are not run again to verify it (Elhoushi et al. 2024, "LayerSkip"; Zhang et al. 2024, "Draft & Verify").
"""

from __future__ import annotations

from builder.decoding.proposers.draft_model import DraftModelProposer
from builder.decoding.proposers.registry import register


@register("early_exit", needs_draft_model=False, needs_exit=True)
class EarlyExitProposer(DraftModelProposer):
    """The model it is given leaves out sequences that it is unsure of (runtime.exit_drafter): before a token is drawn, so that the target's
    distribution is kept."""
