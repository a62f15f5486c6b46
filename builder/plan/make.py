"""From a loaded pipeline to its plan: opens the checkpoints, compiles nothing."""

from __future__ import annotations

from pathlib import Path

from builder.plan.calibration import exit_standing
from builder.plan.context import PlanContext
from builder.plan.host import Host, this_host
from builder.plan.report import Measured, Plan, check
from builder.spec.draft import Draft
from builder.spec.load import LoadedPipeline
from builder.spec.target import Target
from builder.weights import open_checkpoint, open_tokenizer
from builder.weights.shape import Shape, read_shape
from builder.weights.source import available


def make_plan(pipeline: LoadedPipeline, *, host: Host | None = None, measured: Measured | None = None) -> Plan:
    """Check a pipeline on `host` (this machine by default). Raises WeightsError or TokenizerError when its parts cannot be opened."""
    spec = pipeline.spec
    return check(gather(pipeline, host or this_host(gpu="cuda" in (spec.engine.device, spec.draft_device))), measured)


def gather(pipeline: LoadedPipeline, host: Host) -> PlanContext:
    """Read configurations and tokenizer fingerprints of target and draft. Weights that are not here are taken by their stated shape."""
    spec, base = pipeline.spec, pipeline.base
    target = draft = _look_at(spec.target, base)
    if spec.used_draft is not None and not spec.used_draft.from_target:
        draft = _look_at(spec.used_draft, base)
    drafting = spec.used_draft is not None
    return PlanContext(
        spec=spec,
        target=target.config,
        draft=draft.config if drafting else None,
        target_tokenizer=target.tokenizer,
        draft_tokenizer=draft.tokenizer if drafting else None,
        host=host,
        exits=exit_standing(pipeline),
    )


def _look_at(model: Target | Draft, base: Path) -> Shape:
    if model.model is not None and not available(model.weights, base):
        return read_shape(model.model, base)
    return Shape(open_checkpoint(model.weights, base).config, open_tokenizer(model.weights, base).fingerprint)
