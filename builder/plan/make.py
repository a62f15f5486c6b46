"""From a loaded pipeline to its plan: opens the checkpoints, compiles nothing."""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.host import Host, this_host
from builder.plan.report import Measured, Plan, check
from builder.spec.load import LoadedPipeline
from builder.weights import open_checkpoint, open_tokenizer


def make_plan(pipeline: LoadedPipeline, *, host: Host | None = None, measured: Measured | None = None) -> Plan:
    """Check a pipeline on `host` (this machine by default). Raises WeightsError or TokenizerError when its parts cannot be opened."""
    return check(gather(pipeline, host or this_host()), measured)


def gather(pipeline: LoadedPipeline, host: Host) -> PlanContext:
    """Read configurations and tokenizer fingerprints of target and draft."""
    spec, base = pipeline.spec, pipeline.base
    target, tokenizer = open_checkpoint(spec.target.weights, base), open_tokenizer(spec.target.weights, base)
    draft_config, draft_tokenizer = None, None
    if spec.used_draft is not None and spec.used_draft.from_target:
        draft_config, draft_tokenizer = target.config, tokenizer.fingerprint
    elif spec.used_draft is not None:
        draft_config = open_checkpoint(spec.used_draft.weights, base).config
        draft_tokenizer = open_tokenizer(spec.used_draft.weights, base).fingerprint
    return PlanContext(
        spec=spec,
        target=target.config,
        draft=draft_config,
        target_tokenizer=tokenizer.fingerprint,
        draft_tokenizer=draft_tokenizer,
        host=host,
    )
