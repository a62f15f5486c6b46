"""The guarantee where a draft of the target's own first layers is the exit, and its tokens leave in rounds of speculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from builder.decoding.exits.learn_then_test import NEVER, candidates, choose
from builder.decoding.exits.rounds import leave_in_rounds
from builder.decoding.exits.rule import Answers, ExitLimits
from builder.exits.guarantee import Bound, Calibration, look, reliabilities, separations
from builder.exits.passages import ANSWER_TOKENS, Part

MEASURE = "probability"  # of the drafted token, which the loop reads from the draft's logits


@dataclass(frozen=True)
class DraftLayers:
    """The draft has `layer` of the target's `depth` layers and proposes up to `tokens`; a step of it reads `cost` of what a pass reads."""

    layer: int
    depth: int
    tokens: int
    cost: float


def calibrate_draft(answers: Mapping[Part, Answers], draft: DraftLayers, bound: Bound) -> dict[str, Any]:
    """calibration.json, on `answers` of CHOOSE, TEST and HELD_OUT.

    Which tokens a round lets leave hangs on where rounds begin, and so on K, which the control changes. Therefore the test takes all for
    left that are sure and not protected, however many in a row: whatever rounds let leave is among them, and so are the wrong ones.
    """
    learned, tested, held_out = (answers[part] for part in (Part.CHOOSE, Part.TEST, Part.HELD_OUT))
    any_in_a_row = ExitLimits(ANSWER_TOKENS, bound.protected_tokens)
    choice = choose(tested, candidates(learned), bound.max_disagreement, bound.confidence, any_in_a_row, ANSWER_TOKENS)
    threshold = choice.thresholds[0] if choice else NEVER
    rounds = leave_in_rounds(held_out, threshold, bound.limits, draft.tokens)
    agreement = (float(held_out.right.mean()),)
    found = Calibration(
        layers=(draft.layer,),
        depth=draft.depth,
        measure=MEASURE,
        thresholds=(threshold if np.isfinite(threshold) else None,),
        bound=bound,
        choice=choice,
        separation={MEASURE: separations(learned)},
        before=agreement,  # nothing is trained
        after=agreement,
        reliability=reliabilities(held_out),
        tested=len(tested.lengths),
        held_out=look(held_out, rounds.chosen, (draft.layer,), draft.depth, rounds.speedup(draft.cost)),
        made_with="two engines, their weights and tokenizer",
    )
    verified = leave_in_rounds(held_out, NEVER, bound.limits, draft.tokens)
    speculation = {"draft_tokens": draft.tokens, "predicted_speedup": verified.speedup(draft.cost)}
    return {**found.to_json(), "speculation": speculation}
