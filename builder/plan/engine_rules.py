"""Rules about the engine: do its limits fit the model, the cache and the machine?"""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.plan.memory import RESERVE, STANDBY, cache_block_bytes, kv_blocks, memory_fit
from builder.plan.wording import listed
from builder.spec.sizes import approximate_bytes


def context_within_model(context: PlanContext) -> Finding:
    """Beyond the trained positions answers degrade silently."""
    wanted = context.spec.engine.max_seq_len
    models = [context.target] if context.draft is None else [context.target, context.draft]
    limit = min(model.max_position for model in models)
    if wanted <= limit:
        return Finding("context-within-model", True, f"max_seq_len {wanted:,} is within the model's {limit:,} positions")
    return Finding(
        "context-within-model",
        False,
        f"max_seq_len {wanted:,} is beyond the model's {limit:,} positions",
        f"Set engine.max_seq_len to {limit}",
    )


def sliding_window(context: PlanContext) -> Finding:
    """The engines attend to everything, which equals a sliding window only while the sequence fits in it."""
    models = [context.target] if context.draft is None else [context.target, context.draft]
    window = min((model.sliding_window for model in models if model.sliding_window), default=None)
    wanted = context.spec.engine.max_seq_len
    if window is None:
        return Finding("sliding-window", True, "no sliding window")
    if wanted <= window:
        return Finding("sliding-window", True, f"max_seq_len {wanted:,} stays within the window of {window:,}")
    mend = f"Set engine.max_seq_len to {window}: sliding-window attention is not supported"
    return Finding("sliding-window", False, f"max_seq_len {wanted:,} exceeds the model's attention window of {window:,}", mend)


def kv_holds_one_sequence(context: PlanContext) -> Finding:
    """Else the longest allowed request could never finish."""
    cache, wanted = context.spec.engine.kv_cache, context.spec.engine.max_seq_len
    held = kv_blocks(context) * cache.block_size
    if held >= wanted:
        return Finding("kv-holds-one-sequence", True, f"{held:,} cached positions hold {held / wanted:.1f} sequences of {wanted:,}")
    blocks = -(-wanted // cache.block_size)  # rounded up, as the memory below
    mend = f"Raise engine.kv_cache.memory to {-(-blocks * cache_block_bytes(context) >> 20)}MiB or lower max_seq_len"
    return Finding("kv-holds-one-sequence", False, f"the KV cache holds {held:,} positions, max_seq_len is {wanted:,}", mend)


def memory_fits(context: PlanContext) -> Finding:
    fit = memory_fit(context)
    if fit.capacity is None:
        return Finding("memory-fit", True, "not compared: no GPU here")  # which device-available refuses
    message = f"{approximate_bytes(fit.total)} of {approximate_bytes(fit.capacity)}"
    if fit.fits:
        return Finding("memory-fit", True, message)
    standby = next((item.size for item in fit.items if item.name == STANDBY), 0)
    if fit.total - standby <= fit.capacity:
        mend = "Set versions.standby to false: a rollback then takes as long as a version takes to load"
        return Finding("memory-fit", False, f"needs {message}, with the version before the live one", mend)
    largest = max((item for item in fit.items if item.name not in (RESERVE, STANDBY)), key=lambda item: item.size)
    return Finding("memory-fit", False, f"needs {message}", f"Lower it, starting with {largest.name} ({approximate_bytes(largest.size)})")


def verify_fits_one_pass(context: PlanContext) -> Finding:
    """When drafts of a full batch do not fit in one pass, some sequences wait and speculation slows the batch."""
    spec = context.spec
    drafted = spec.speculation.max_draft_tokens if spec.speculation.proposer != "none" else 0
    rows = spec.engine.max_batch_size * (drafted + 1)
    if rows <= spec.engine.max_num_tokens:
        return Finding("verify-fits-one-pass", True, f"a full batch needs {rows} of {spec.engine.max_num_tokens} rows")
    mend = f"Set engine.max_num_tokens to {rows} or more, or lower max_batch_size or max_draft_tokens"
    return Finding("verify-fits-one-pass", False, f"a full batch needs {rows} rows, max_num_tokens is {spec.engine.max_num_tokens}", mend)


def instruction_set_available(context: PlanContext) -> Finding:
    wanted, have = context.spec.engine.instruction_set, context.host.instruction_sets
    if wanted == "auto" or wanted in have:
        return Finding("instruction-set-available", True, f"{have[0] if wanted == 'auto' else wanted} on this machine")
    message = f"this machine cannot run {wanted}, only {listed(have)}"
    return Finding("instruction-set-available", False, message, f"Set engine.instruction_set to auto or {have[0]}")


def threads_within_cores(context: PlanContext) -> Finding:
    """More threads than cores wait for each other at every layer."""
    wanted, have = context.spec.engine.threads, context.host.cores
    if wanted is None or wanted <= have:
        return Finding("threads-within-cores", True, f"{wanted or have} threads on {have} cores")
    return Finding("threads-within-cores", False, f"engine.threads is {wanted}, this machine has {have} cores", f"Set it to {have} or null")
