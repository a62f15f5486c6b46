"""All that the rules look at, gathered once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from builder.plan.host import Host
from builder.spec.pipeline import PipelineSpec
from builder.weights.config import ModelConfig


@dataclass(frozen=True)
class PlanContext:
    """`draft` is the configuration of the draft's checkpoint before draft.layers cuts it; None when no draft is built.

    The tokenizers are fingerprints; a draft from the target's own weights has the target's.
    """

    spec: PipelineSpec
    target: ModelConfig
    draft: ModelConfig | None
    target_tokenizer: str
    draft_tokenizer: str | None
    host: Host

    @property
    def cut_draft(self) -> ModelConfig | None:
        """The draft as it will be built: the first draft.layers layers. More layers than there are change nothing here."""
        if self.draft is None or self.spec.draft is None or self.spec.draft.layers == "all":
            return self.draft
        return dataclasses.replace(self.draft, num_layers=min(self.spec.draft.layers, self.draft.num_layers))

    @property
    def shared_cache(self) -> bool:
        """The draft reads and writes the target's KV cache: it is made of the target's own first layers."""
        return self.draft is not None and self.spec.draft is not None and self.spec.draft.from_target
