"""Rules about the draft: is it related to the target, can it be packed, can it pay?"""

from __future__ import annotations

from builder.plan.context import PlanContext
from builder.plan.finding import Finding
from builder.plan.memory import draft_read_bytes, target_read_bytes
from builder.plan.wording import listed
from builder.spec.sizes import approximate_bytes

_RELATED = "Use a draft of the target's own family: `same`, or a pruned or distilled model with its tokenizer"


def vocab_match(context: PlanContext) -> Finding:
    """An unrelated draft proposes ids that mean something else to the target (M4)."""
    if context.draft is None:
        return Finding("vocab-match", True, "no draft")
    ours, theirs = context.target.vocab_size, context.draft.vocab_size
    if ours == theirs:
        return Finding("vocab-match", True, f"both models have {ours:,} tokens")
    mend = _RELATED
    if context.target_tokenizer == context.draft_tokenizer and context.target_tokenizer is not None:
        mend = "They share a tokenizer but pad it differently: use `same`, or a draft whose config.json has the target's vocab_size"
    return Finding("vocab-match", False, f"the target has {ours:,} tokens, the draft {theirs:,}", mend)


def tokenizer_match(context: PlanContext) -> Finding:
    """Equal vocabulary sizes are not enough: the same id must be the same text."""
    if context.draft is None:
        return Finding("tokenizer-match", True, "no draft")
    if context.target_tokenizer is None or context.draft_tokenizer is None:
        return Finding("tokenizer-match", True, "not compared: a tokenizer is not on this machine; `build` compares them")
    if context.target_tokenizer == context.draft_tokenizer:
        return Finding("tokenizer-match", True, "both models have the same tokenizer")
    return Finding("tokenizer-match", False, "target and draft have different tokenizers", _RELATED)


def draft_layers_valid(context: PlanContext) -> Finding:
    wanted = context.spec.draft.layers if context.spec.draft else "all"
    if context.draft is None or wanted == "all":
        return Finding("draft-layers-valid", True, "no draft" if context.draft is None else "all layers")
    have = context.draft.num_layers
    if wanted <= have:
        return Finding("draft-layers-valid", True, f"the first {wanted} of {have} layers")
    return Finding("draft-layers-valid", False, f"draft.layers is {wanted}, the model has {have}", f"Set it to {have} or less, or to all")


def draft_vocabulary_valid(context: PlanContext) -> Finding:
    wanted = context.spec.draft.vocabulary if context.spec.draft else "all"
    if context.draft is None or wanted == "all":
        return Finding("draft-vocabulary-valid", True, "no draft" if context.draft is None else "all tokens")
    have = context.draft.vocab_size
    if wanted <= have:
        return Finding("draft-vocabulary-valid", True, f"the {wanted:,} most frequent of {have:,} tokens")
    message = f"draft.vocabulary is {wanted:,}, the model has {have:,} tokens"
    return Finding("draft-vocabulary-valid", False, message, "Set it to less, or to all")


def group_size_divides(context: PlanContext) -> Finding:
    """Groups lie along a matrix's input; one that does not end with its row would share a scale between rows."""
    if context.draft is None or context.spec.draft is None:
        return Finding("group-size-divides", True, "no draft")
    size, model = context.spec.draft.quantization.group_size, context.draft
    widths = sorted({model.hidden_size, model.num_heads * model.head_dim, model.intermediate_size})
    odd = [width for width in widths if width % size]
    if not odd:
        return Finding("group-size-divides", True, f"{size} divides {listed(widths)}")
    fitting = [other for other in (32, 64, 128) if not any(width % other for width in widths)]
    mend = (
        f"Set draft.quantization.group_size to {listed(fitting, 'or')}"
        if fitting
        else "This model cannot be packed in groups: choose a draft"
    )
    return Finding("group-size-divides", False, f"group_size {size} does not divide the layer width {listed(odd)}", mend)


def draft_is_cheaper(context: PlanContext) -> Finding:
    """Decoding is bound by the bytes it reads: a draft step that reads as much as a target step can never pay."""
    draft, target = draft_read_bytes(context), target_read_bytes(context)
    if draft is None:
        return Finding("draft-is-cheaper", True, "no draft")
    message = f"a draft step reads {approximate_bytes(draft)}, a target step {approximate_bytes(target)}"
    if draft < target:
        return Finding("draft-is-cheaper", True, message)
    return Finding("draft-is-cheaper", False, message, "Choose a smaller draft, fewer draft.layers, or proposer ngram")
