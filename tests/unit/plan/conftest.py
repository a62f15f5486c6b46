"""Contexts made by hand: no checkpoint is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.plan.calibration import ExitStanding
from builder.plan.context import PlanContext
from builder.plan.host import Host
from builder.spec import PipelineSpec
from builder.weights.config import ModelConfig

SMOLLM2 = ModelConfig(
    architecture="llama",
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    tie_word_embeddings=True,
)
BASE = Path()
HOST = Host(memory=16 << 30, cores=2, instruction_sets=("avx2", "generic"))

MakeContext = Callable[..., PlanContext]


@pytest.fixture
def make_context() -> MakeContext:
    """make_context(engine={...}, draft_model={...}, ...): SmolLM2 with an INT4 draft of itself, changed where asked."""

    def make(
        *,
        target_model: dict[str, Any] | None = None,
        draft_model: dict[str, Any] | None = None,
        draft_tokenizer: str = "same",
        host: Host = HOST,
        exits: ExitStanding | None = None,
        base_models: tuple[ModelConfig, ModelConfig | None] = (SMOLLM2, None),
        **sections: Any,
    ) -> PlanContext:
        spec = PipelineSpec.model_validate(
            {"metadata": {"name": "demo", "owner": "team"}, "target": {"weights": "t.gguf"}} | sections,
        )
        target = dataclasses.replace(base_models[0], **(target_model or {}))
        draft = dataclasses.replace(base_models[1] or target, **(draft_model or {})) if spec.used_draft else None
        return PlanContext(spec, target, draft, "same", draft_tokenizer if draft else None, host, exits)

    return make
