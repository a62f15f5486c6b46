"""Speculation keeps the target's distribution (M2, M15): shown by exact enumeration, with controls that must fail.

`verify` is piecewise constant in its uniform numbers. The enumeration calls it once inside every piece and weighs
the answer with the piece's volume, so what is summed is the distribution of the real code, not of a copy of it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from builder.decoding import acceptance
from builder.decoding.acceptance import residual, verify, verify_greedy
from builder.decoding.params import SamplingParams
from builder.decoding.random import Purpose, uniforms
from builder.decoding.sampling import distribution, sample

Verify = Callable[..., tuple[int, int]]
PARAMS = {
    "plain": SamplingParams(temperature=1.0),
    "hot": SamplingParams(temperature=1.7),
    "cold": SamplingParams(temperature=0.4),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
    "penalty": SamplingParams(temperature=1.0, repetition_penalty=1.8),
    "all": SamplingParams(temperature=1.3, top_k=3, top_p=0.9, min_p=0.05, repetition_penalty=1.4),
}
HISTORY = [1, 0]


class Tree:
    """Random logits for each prefix: a target (or draft) that remembers everything."""

    def __init__(self, vocab: int, depth: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.vocab = vocab
        self.logits = {
            prefix: torch.from_numpy(rng.normal(size=vocab) * 1.5)
            for length in range(depth + 1)
            for prefix in itertools.product(range(vocab), repeat=length)
        }

    def p(self, prefix: tuple[int, ...], params: SamplingParams) -> Tensor:
        """One row, asked for alone: history holds the prefix. The loop asks for all rows at once, with `drafted`."""
        return distribution(self.logits[prefix][None], params, HISTORY + list(prefix))[0]

    def rows(self, draft: tuple[int, ...], params: SamplingParams) -> Tensor:
        stacked = torch.stack([self.logits[draft[:length]] for length in range(len(draft) + 1)])
        return distribution(stacked, params, HISTORY, draft)


def pieces(breaks: list[float]) -> list[tuple[float, float]]:
    """(middle, width) of the pieces that breaks cut [0, 1) into."""
    edges = sorted({0.0, 1.0, *(b for b in breaks if 0 < b < 1)})
    return [((low + high) / 2, high - low) for low, high in pairwise(edges)]


def outcomes(rule: Verify, p: Tensor, q: Tensor | None, draft: tuple[int, ...]) -> dict[tuple[int, int], float]:
    """Probability of each (accepted, next) over all uniform numbers, given the draft."""
    length = len(draft)
    accept_breaks = []
    for i, token in enumerate(draft):
        ratio = float(p[i, token]) / (1.0 if q is None else float(q[i, token]))
        accept_breaks.append(pieces([ratio, 1 / ratio if ratio else 2.0, float(p[i, token])]))  # broken rules break elsewhere
    rests = [residual(p[i], None if q is None else q[i], draft[i]) for i in range(length)] + list(p)
    pick_breaks = pieces([float(edge) for rest in rests for edge in (rest / rest.sum()).cumsum(0)])
    found: dict[tuple[int, int], float] = defaultdict(float)
    for accepts in itertools.product(*accept_breaks):
        for pick, width in pick_breaks:
            numbers = np.full((length + 1, 3), pick)  # one pick for all positions: only one of them is used
            numbers[:length, Purpose.ACCEPT] = [middle for middle, _ in accepts]
            found[rule(p, q, draft, numbers)] += width * float(np.prod([piece for _, piece in accepts]))
    return found


def emitted(rule: Verify, target: Tree, draft_model: Tree | None, depth: int, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of each run of tokens one round emits. Without a draft model a fixed draft is proposed, as n-grams are."""
    total: dict[tuple[int, ...], float] = defaultdict(float)
    for draft in itertools.product(range(target.vocab), repeat=depth) if draft_model else [tuple(range(depth))]:
        q = torch.stack([draft_model.p(draft[:i], params) for i in range(depth)]) if draft_model else None
        weight = 1.0 if q is None else float(torch.prod(q[range(depth), draft]))
        if weight > 0:
            for (accepted, token), mass in outcomes(rule, target.rows(draft, params), q, draft).items():
                total[(*draft[:accepted], token)] += weight * mass
    return total


def worst_error(total: dict[tuple[int, ...], float], target: Tree, params: SamplingParams) -> float:
    """Largest gap, over every prefix, between how the next token is distributed where a round emits one, and p."""
    worst = abs(sum(total.values()) - 1.0)
    for prefix in {run[:length] for run in total for length in range(len(run))}:
        longer = {run: mass for run, mass in total.items() if len(run) > len(prefix) and run[: len(prefix)] == prefix}
        reached = sum(longer.values())
        for token, p in enumerate(target.p(prefix, params).tolist()):
            mass = sum(mass for run, mass in longer.items() if run[len(prefix)] == token)
            worst = max(worst, abs(mass - reached * p))
    return worst


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize(("vocab", "depth"), [(3, 1), (4, 2), (5, 1)])
def test_every_token_of_a_round_is_distributed_as_the_target(vocab: int, depth: int, params: SamplingParams) -> None:
    target, draft = Tree(vocab, depth, seed=1), Tree(vocab, depth, seed=2)
    assert worst_error(emitted(verify, target, draft, depth, params), target, params) < 1e-12


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_a_draft_that_scores_a_part_of_the_vocabulary_keeps_the_target(params: SamplingParams) -> None:
    target, draft = Tree(5, 2, seed=1), Tree(5, 2, seed=2)
    for logits in draft.logits.values():
        logits[[1, 4]] = float("-inf")  # what a cut head gives for tokens outside
    total = emitted(verify, target, draft, 2, params)
    assert worst_error(total, target, params) < 1e-12
    assert not any(run[0] in (1, 4) for run in total if len(run) == 3)  # never drafted


def test_three_drafted_tokens_keep_the_target_too() -> None:
    target, draft, params = Tree(3, 3, seed=3), Tree(3, 3, seed=4), PARAMS["penalty"]
    assert worst_error(emitted(verify, target, draft, 3, params), target, params) < 1e-12


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_certain_proposer_keeps_the_target(depth: int, params: SamplingParams) -> None:
    target = Tree(4, depth, seed=5)
    assert worst_error(emitted(verify, target, None, depth, params), target, params) < 1e-12


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    target, params = Tree(3, 2, seed=6), PARAMS["all"]
    total = emitted(verify, target, target, 2, params)
    assert sum(mass for run, mass in total.items() if len(run) == 3) == pytest.approx(1.0, abs=1e-12)
    assert worst_error(total, target, params) < 1e-12


def accept_upside_down(p: Tensor, q: Tensor | None, draft: tuple[int, ...], numbers: np.ndarray) -> tuple[int, int]:
    assert q is not None
    for i, token in enumerate(draft):
        if numbers[i, Purpose.ACCEPT] * float(p[i, token]) >= float(q[i, token]):
            return i, sample(residual(p[i], q[i], token), float(numbers[i, Purpose.RESAMPLE]))
    return len(draft), sample(p[len(draft)], float(numbers[-1, Purpose.RESAMPLE]))


def test_negative_control_accepting_with_q_over_p_is_seen() -> None:
    target, draft, params = Tree(4, 2, seed=1), Tree(4, 2, seed=2), PARAMS["plain"]
    assert worst_error(emitted(accept_upside_down, target, draft, 2, params), target, params) > 1e-2


def test_negative_control_resampling_from_p_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, _q, _token: p)
    target, draft, params = Tree(4, 2, seed=1), Tree(4, 2, seed=2), PARAMS["plain"]
    assert worst_error(emitted(verify, target, draft, 2, params), target, params) > 1e-2


def test_negative_control_a_penalty_blind_to_the_draft_is_seen() -> None:
    target, draft, params = Tree(4, 2, seed=1), Tree(4, 2, seed=2), PARAMS["penalty"]

    def blind(drafted: tuple[int, ...], wanted: SamplingParams) -> Tensor:
        return torch.cat([distribution(target.logits[drafted[:i]][None], wanted, HISTORY) for i in range(len(drafted) + 1)])

    target.rows = blind  # type: ignore[method-assign]
    assert worst_error(emitted(verify, target, draft, 2, params), target, params) > 1e-2


def chi_square(picks: list[int], p: Tensor) -> float:
    """p-value of the picks against p: the upper tail of chi-square with V-1 degrees of freedom."""
    expected = p * len(picks)
    statistic = ((torch.bincount(torch.tensor(picks), minlength=len(p)) - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(p) - 1) / 2, dtype=torch.float64), statistic / 2))


def test_the_sampled_path_agrees_with_the_target() -> None:
    target, draft_model, params = Tree(4, 1, seed=8), Tree(4, 1, seed=9), PARAMS["plain"]
    p, q = target.p((), params), draft_model.p((), params)[None]
    rows = [target.rows((token,), params) for token in range(4)]
    firsts: list[int] = []
    swapped: list[int] = []
    for seed in range(4000):
        numbers = uniforms(seed, 12, 2)
        draft = (sample(q[0], float(numbers[0, Purpose.DRAFT])),)
        for rule, picks in ((verify, firsts), (accept_upside_down, swapped)):
            accepted, token = rule(rows[draft[0]], q, draft, numbers)
            picks.append((*draft[:accepted], token)[0])
    assert chi_square(firsts, p) > 1e-3
    assert chi_square(swapped, p) < 1e-9


def test_greedy_keeps_the_drafted_tokens_up_to_the_first_difference() -> None:
    assert verify_greedy([4, 5, 6], [4, 5]) == (2, 6)
    assert verify_greedy([4, 5, 6], [4, 9]) == (1, 5)
    assert verify_greedy([4, 5, 6], [9, 5]) == (0, 4)
    assert verify_greedy([4], []) == (0, 4)


def test_greedy_is_the_one_hot_case_of_the_rule() -> None:
    best = [2, 0, 1]
    p = torch.nn.functional.one_hot(torch.tensor(best), 3).double()
    for draft in itertools.product(range(3), repeat=2):
        assert verify(p, None, draft, np.full((3, 3), 0.5)) == verify_greedy(best, draft)
