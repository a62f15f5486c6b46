"""Sampled output: distributed as the target's, reproducible by seed, blind to neighbours; log-probabilities are the target's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from builder.decoding import acceptance
from builder.decoding.params import SamplingParams
from builder.decoding.proposers import Context, Draft, draft_model
from builder.decoding.sampling import distribution, token_logprobs
from builder.decoding.stopping import BINS, StopRule
from builder.runtime import engine
from builder.runtime.exit_drafter import ExitDrafter
from builder.runtime.runner import Rows
from tests.unit.runtime.harness import Bench, whole_pass

torch.set_num_threads(1)
PROMPT = (1,)
VOCAB, LENGTH, DRAWS = 3, 3, 1500


def exact(sampling: SamplingParams, bench: Bench, length: int) -> torch.Tensor:
    """Probability of each answer of so many tokens, by enumeration."""
    masses = []
    for answer in itertools.product(range(VOCAB), repeat=length):
        ids = [*PROMPT, *answer]
        logits = whole_pass(bench.target, ids)[0]
        rows = [distribution(logits[at - 1 : at], sampling, ids[:at])[0, ids[at]] for at in range(len(PROMPT), len(ids))]
        masses.append(torch.stack(rows).prod())
    return torch.stack(masses)


def p_value(
    sampling: SamplingParams, proposer: str, shared_kv: bool, stop: StopRule | None = None, length: int = LENGTH, sure: float = 0.4
) -> float:
    """Chi-square of DRAWS answers against the enumeration. With `stop` every draft ends where it says."""
    bench = Bench(
        vocab=VOCAB,
        sharpness=0.4,
        noise=0.5,
        proposer=proposer,
        shared_kv=shared_kv,
        max_draft_tokens=2,
        max_batch_size=50,
        max_num_tokens=400,
        num_blocks=200,
        max_waiting=DRAWS,
        sure=sure,
    )
    bench.scheduler.control.stop_rule = lambda _sequence: stop
    for draw in range(DRAWS):
        fields = {"max_tokens": length, "temperature": sampling.temperature, "top_p": sampling.top_p}
        with pytest.MonkeyPatch.context() as patch:  # a seed of the client's would keep the first token from being drafted
            patch.setattr(engine, "fresh_seed", lambda seed=draw: seed)
            bench.submit(str(draw), PROMPT, SamplingParams(**fields, repetition_penalty=sampling.repetition_penalty))  # type: ignore[arg-type]
    bench.run()
    answers = torch.tensor([bench.tokens(str(draw)) for draw in range(DRAWS)])
    places = torch.tensor([VOCAB**place for place in reversed(range(length))])
    counts = torch.bincount((answers * places).sum(-1), minlength=VOCAB**length).double()
    expected = exact(sampling, bench, length) * DRAWS
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=torch.float64), statistic / 2))


@pytest.mark.parametrize(
    ("proposer", "shared_kv"), [("none", True), ("draft_model", True), ("draft_model", False), ("hybrid", True), ("early_exit", True)]
)
def test_sampled_answers_are_distributed_as_the_targets(proposer: str, shared_kv: bool) -> None:
    assert p_value(SamplingParams(temperature=1.2, repetition_penalty=3.0), proposer, shared_kv) > 1e-3


def test_filtered_answers_are_distributed_as_the_targets() -> None:
    assert p_value(SamplingParams(temperature=1.0, top_p=0.8), "draft_model", True) > 1e-3


def test_negative_control_a_resampling_from_p_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, _q, _token: p)
    assert p_value(SamplingParams(temperature=1.2, repetition_penalty=3.0), "draft_model", True) < 1e-6


@pytest.mark.parametrize("shared_kv", [True, False])
def test_drafts_that_end_early_leave_the_targets_distribution(shared_kv: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: set[int] = set()
    monkeypatch.setattr(draft_model, "goes_on", _watched(lengths))
    rule = StopRule(tuple(place / BINS for place in range(BINS)), 0.6)  # drafts are 0.49 to 0.76 sure here
    assert p_value(SamplingParams(temperature=3.0), "draft_model", shared_kv, rule, length=4) > 1e-3
    assert lengths == {1, 2}, "the rule never had to decide"


def _watched(lengths: set[int]) -> Callable[[Context, Draft], bool]:
    """draft_model.goes_on, that notes how long drafts become where two tokens are wanted."""
    goes_on = draft_model.goes_on

    def watch(context: Context, draft: Draft) -> bool:
        more = goes_on(context, draft)
        if not more and context.limit == 2:
            lengths.add(len(draft))
        return more

    return watch


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=3.0), SamplingParams(temperature=1.2, top_p=0.8, repetition_penalty=3.0)])
def test_drafts_of_an_exit_leave_the_targets_distribution_and_end_where_its_head_is_unsure(
    sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: set[int] = set()
    through = ExitDrafter.through

    def watch(self: ExitDrafter, rows: Rows, groups: Sequence[int]) -> torch.Tensor:
        lengths.update(count - 1 for count in groups)
        return through(self, rows, groups)

    monkeypatch.setattr(ExitDrafter, "through", watch)
    assert p_value(sampling, "early_exit", True, length=4, sure=0.45) > 1e-3
    assert lengths == {0, 1, 2}


@pytest.mark.parametrize("proposer", ["draft_model", "early_exit"])
def test_negative_control_a_rule_that_throws_a_drawn_token_away_is_seen(proposer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pick, goes_on = draft_model.pick, draft_model.goes_on
    ended: list[Draft] = []

    def unsure(logits: torch.Tensor, contexts: Sequence[Context], drafts: Sequence[Draft]) -> None:
        pick(logits, contexts, drafts)
        for draft in drafts:
            if draft.q[-1][draft.token_ids[-1]] < 0.5:
                del draft.token_ids[-1], draft.q[-1]
                ended.append(draft)

    monkeypatch.setattr(draft_model, "pick", unsure)
    monkeypatch.setattr(draft_model, "goes_on", lambda context, draft: goes_on(context, draft) and not any(draft is one for one in ended))
    assert p_value(SamplingParams(temperature=3.0), proposer, True, length=4) < 1e-6


@pytest.mark.parametrize("proposer", ["none", "draft_model"])
def test_a_seeded_answer_does_not_depend_on_its_neighbours(proposer: str) -> None:
    sampling = SamplingParams(temperature=1.0, seed=-5, max_tokens=12)
    alone = Bench(proposer=proposer)
    alone.submit("a", (1, 2, 3, 4), sampling)
    alone.run()
    crowd = Bench(proposer=proposer)
    for place in range(4):
        crowd.submit(str(place), (place, 7), SamplingParams(temperature=0.9, max_tokens=5 + place))
    crowd.engine.step()
    crowd.submit("a", (1, 2, 3, 4), sampling)
    crowd.run(audit=True)
    assert crowd.tokens("a") == alone.tokens("a")


def test_a_seeded_answer_survives_preemption_and_chunking() -> None:
    sampling = SamplingParams(temperature=1.0, seed=11, max_tokens=20)
    roomy, tight = Bench(proposer="none"), Bench(proposer="none", num_blocks=12, block_size=3, max_batch_size=4, max_num_tokens=5)
    for bench in (roomy, tight):
        for place in range(4):
            bench.submit(str(place), (place, 1, 2), sampling)
        bench.run(audit=True)
    assert tight.scheduler.preemptions > 0
    assert [roomy.tokens(str(place)) for place in range(4)] == [tight.tokens(str(place)) for place in range(4)]


def test_requests_without_a_seed_differ() -> None:
    bench = Bench(proposer="none", sharpness=0.3)
    for place in range(3):
        bench.submit(str(place), (1, 2), SamplingParams(temperature=1.0, max_tokens=30))
    bench.run()
    assert len({tuple(bench.tokens(str(place))) for place in range(3)}) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("proposer", ["none", "draft_model", "ngram"])
def test_logprobs_of_emitted_tokens_are_those_of_a_whole_pass(proposer: str, temperature: float) -> None:
    bench = Bench(proposer=proposer)
    prompt = (1, 2, 1, 2)
    bench.submit("a", prompt, SamplingParams(max_tokens=15, temperature=temperature, seed=3, logprobs=2))
    bench.run()
    reported = [entry for output in bench.outputs["a"] for entry in output.logprobs]
    ids = [*prompt, *bench.tokens("a")]
    logits = whole_pass(bench.target, ids)[0]
    assert len(reported) == 15
    for at, entry in enumerate(reported, start=len(prompt)):
        expected = token_logprobs(logits[at - 1], ids[at], 2)
        assert list(entry) == list(expected)
        assert entry == pytest.approx(expected, abs=1e-9)
