"""Every compatibility rule. Each looks at one thing, has a stable id, and says how to mend what it refuses."""

from __future__ import annotations

from collections.abc import Callable

from builder.plan import draft_rules, engine_rules
from builder.plan.context import PlanContext
from builder.plan.finding import Finding

Rule = Callable[[PlanContext], Finding]

RULES: tuple[Rule, ...] = (
    draft_rules.vocab_match,
    draft_rules.tokenizer_match,
    draft_rules.draft_layers_valid,
    draft_rules.draft_vocabulary_valid,
    draft_rules.group_size_divides,
    draft_rules.draft_is_cheaper,
    engine_rules.context_within_model,
    engine_rules.sliding_window,
    engine_rules.kv_holds_one_sequence,
    engine_rules.verify_fits_one_pass,
    engine_rules.memory_fits,
    engine_rules.instruction_set_available,
    engine_rules.threads_within_cores,
)
