from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from builder.decoding.params import SamplingParams
from builder.quality.contexts import Context
from builder.quality.distribution import POSITIONS, compare
from builder.quality.subject import Ask, Reply, Subject


class Chooser:
    """In place of an engine: at a context that ends with 1 it draws from two tokens, evenly at temperature 1, elsewhere always the same."""

    speculates = True

    def __init__(self) -> None:
        self._dice = np.random.default_rng(0)

    def ask(self, asks: Sequence[Ask], advance: Callable[[], None] = lambda: None) -> list[Reply]:
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: Ask) -> Reply:
        chance = 0.5 if ask.sampling.temperature == 1.0 and ask.prompt_ids[-1] == 1 else 0.0
        tokens = self._dice.random(POSITIONS) < chance
        return Reply(token_ids=tokens.astype(int).tolist(), rounds=1)


def test_the_rule_is_broken_where_a_broken_rule_shows() -> None:
    contexts = [Context("facts/closed@1", (1, 0)), Context("facts/open@1", (0, 1))]
    samplings = [SamplingParams(temperature=0.5), SamplingParams(temperature=1.0), SamplingParams(temperature=0.8)]
    found = compare(cast("Subject", Chooser()), contexts, samplings, 50, 0.01)
    assert {(test.temperature, test.context) for test in found.control} == {(1.0, "facts/open@1")}
    assert len(found.tests) == 6 * (POSITIONS - 1)
