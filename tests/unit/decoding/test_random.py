"""The numbers a request draws: reproducible, and blind to everything but its seed and the position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding.random import fresh_seed, uniforms


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
def test_the_numbers_do_not_depend_on_how_positions_are_grouped(seed: int, position: int, first: int, second: int) -> None:
    whole = uniforms(seed, position, first + second)
    assert np.array_equal(whole, np.concatenate([uniforms(seed, position, first), uniforms(seed, position + first, second)]))
    assert ((whole >= 0) & (whole < 1)).all()


def test_seeds_positions_and_purposes_draw_different_numbers() -> None:
    numbers = np.concatenate([uniforms(seed, 0, 50).ravel() for seed in (-1, 0, 1, 2)])
    assert len(np.unique(numbers)) == 4 * 50 * 3


def test_the_numbers_are_uniform_and_the_purposes_uncorrelated() -> None:
    numbers = uniforms(7, 0, 20000)
    assert np.abs(numbers.mean(0) - 0.5).max() < 4 * np.sqrt(1 / 12 / 20000)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(3)).max() < 4 / np.sqrt(20000)


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(100)}) == 100
