"""All that the rules look at, gathered once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from builder.plan.calibration import ExitStanding
from builder.plan.devices import DEVICES, Device
from builder.plan.host import Host
from builder.spec.pipeline import PipelineSpec
from builder.weights.config import ModelConfig


@dataclass(frozen=True)
class PlanContext:
    """`draft` is the configuration of the draft's checkpoint before draft.layers cuts it; None when no draft is built.

    The tokenizers are fingerprints; a draft from the target's own weights has the target's. None: not known on this machine.
    """

    spec: PipelineSpec
    target: ModelConfig
    draft: ModelConfig | None
    target_tokenizer: str | None
    draft_tokenizer: str | None
    host: Host
    exits: ExitStanding | None = None  # None where the pipeline has no early exit

    @property
    def cut_draft(self) -> ModelConfig | None:
        """The draft as it will be built: the first draft.layers layers. More layers than there are change nothing here."""
        if self.draft is None or self.spec.draft is None or self.spec.draft.layers == "all":
            return self.draft
        return dataclasses.replace(self.draft, num_layers=min(self.spec.draft.layers, self.draft.num_layers))

    @property
    def device(self) -> Device | None:
        """Figures of the GPU that serves; None where the CPU does."""
        gpu = self.spec.engine.gpu
        return None if gpu is None else DEVICES[gpu.name]

    @property
    def shared_cache(self) -> bool:
        """The draft reads and writes the target's KV cache."""
        return self.spec.shared_cache and self.device is None  # TensorRT-LLM runs two models, each with a cache of its own

    @property
    def draft_tokens(self) -> int:
        """K, or 0 where nothing proposes."""
        return 0 if self.spec.speculation.proposer == "none" else self.spec.speculation.max_draft_tokens
