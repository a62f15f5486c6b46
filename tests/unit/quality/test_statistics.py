from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.quality.statistics import chi_square, expected_variation, holm, paired_bootstrap, total_variation

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def sampled(p: list[float], size: int, seed: int) -> Counter[int]:
    return Counter(np.random.default_rng(seed).choice(len(p), size=size, p=p).tolist())


@given(P_VALUES)
def test_holm_raises_no_p_value_beyond_bonferroni_and_keeps_their_order(values: list[float]) -> None:
    adjusted = holm(values)
    for value, found in zip(values, adjusted, strict=True):
        assert value <= found <= min(1.0, len(values) * value) + 1e-12
    order = sorted(range(len(values)), key=lambda place: values[place])
    assert [adjusted[place] for place in order] == sorted(adjusted)


def test_the_chi_square_keeps_its_level_on_equal_distributions_with_a_long_tail() -> None:
    p = (np.arange(1, 201) ** -1.5 / sum(np.arange(1, 201) ** -1.5)).tolist()
    below = sum(chi_square(sampled(p, 400, 2 * run), sampled(p, 400, 2 * run + 1)) < 0.05 for run in range(200))
    assert below <= 22  # of 200 at level 0.05: mean 10, and 22 has a chance of 0.0004


def test_the_chi_square_sees_a_shift_of_a_tenth() -> None:
    assert chi_square(sampled([0.5, 0.3, 0.2], 2000, 1), sampled([0.4, 0.4, 0.2], 2000, 2)) < 1e-6
    assert chi_square(Counter({1: 300}), Counter({1: 300})) == 1.0


def test_a_shift_that_is_spread_over_rare_tokens_only_is_seen_in_the_pool() -> None:
    rare = dict.fromkeys(range(100, 180), 1)
    assert chi_square(Counter({1: 300}), Counter({1: 220, **rare})) < 1e-6


@given(st.lists(st.integers(0, 20), min_size=2, max_size=6).filter(any))
def test_total_variation_is_0_for_the_same_shares_and_1_for_nothing_in_common(counts: list[int]) -> None:
    a = {token: count for token, count in enumerate(counts) if count}
    assert total_variation(a, {token: 2 * count for token, count in a.items()}) == pytest.approx(0.0)
    assert total_variation(a, {100 + token: count for token, count in a.items()}) == pytest.approx(1.0)


def test_chance_alone_gives_about_the_variation_that_is_expected() -> None:
    a, b = sampled([0.25] * 4, 500, 1), sampled([0.25] * 4, 500, 2)
    assert expected_variation(a, b) == pytest.approx(total_variation(a, b), abs=0.03)


def test_the_bootstrap_interval_holds_the_mean_and_a_real_loss_is_beyond_a_limit() -> None:
    before, after = [1.0] * 40, [1.0] * 20 + [0.0] * 20
    lost = paired_bootstrap(before, after)
    assert lost.mean == -0.5 and -0.7 < lost.low < -0.5 < lost.high < -0.3
    assert lost.beyond(0.05) and not lost.beyond(0.6)
    assert not paired_bootstrap([1, 0, 1, 0, 1, 0], [0, 1, 1, 0, 1, 0]).beyond(0.0)
    same = paired_bootstrap(before, before)
    assert (same.mean, same.low, same.high, same.beyond(0.0)) == (0.0, 0.0, 0.0, False)
