"""A draft that scores its target's most frequent tokens only: what it keeps, and that answers stay exact."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builder.align.corpus import Sample
from builder.align.recipe import AlignmentOptions
from builder.align.staging import Parts, staged, staged_engine
from builder.align.vocabulary import cut_vocabulary, most_frequent, read_counts, token_counts, write_counts
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.unpacking import read_tensors
from builder.decoding.params import SamplingParams
from builder.decoding.sampling import distribution
from builder.repository.engine import open_parts
from builder.runtime.engine import Engine
from builder.runtime.request import Output, Request
from builder.runtime.runner import Rows
from builder.spec.pipeline import PipelineSpec

SIZE = 100  # of 320 tokens; padded to 128 rows in the packed head


@pytest.fixture(scope="module")
def cut(parts: Parts, spec: PipelineSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    cut_vocabulary(parts.draft, "cut", SIZE, AlignmentOptions().recipe("target", "tokenizer"), parts, spec, folder)
    return folder


def answers(engine: Engine, temperature: float) -> list[list[int]]:
    """Tokens of eight requests."""
    found: list[list[int]] = [[] for _ in range(8)]

    def take(answer: list[int], output: Output) -> None:
        answer += output.token_ids

    for number, answer in enumerate(found):
        params = SamplingParams(max_tokens=40, temperature=temperature, seed=number, ignore_eos=True)
        engine.submit(Request(str(number), (256, 70, 71 + number), params), partial(take, answer))
    while engine.step():
        pass
    return found


def test_the_most_frequent_ids_come_first_then_the_lowest() -> None:
    counts = token_counts([Sample((7, 7, 9, 5), 1), Sample((9, 7), 1)])
    assert counts == Counter({7: 3, 9: 2, 5: 1})
    assert most_frequent(counts, 3, 20, always=(15,)) == [7, 9, 15]
    assert most_frequent(counts, 6, 20, always=(15,)) == [0, 1, 5, 7, 9, 15]


@given(st.dictionaries(st.integers(0, 49), st.integers(1, 9)), st.integers(1, 50))
def test_no_token_outside_is_more_frequent_than_one_inside(counts: dict[int, int], size: int) -> None:
    ids = most_frequent(counts, size, 50, always=())
    assert ids == sorted(set(ids)) and len(ids) == size
    outside = set(range(50)) - set(ids)
    assert min(counts.get(token, 0) for token in ids) >= max((counts.get(token, 0) for token in outside), default=0)


def test_counts_are_kept_with_the_engine(tmp_path: Path) -> None:
    assert read_counts(tmp_path) is None
    write_counts(tmp_path, {5: 2, 300: 1})
    assert read_counts(tmp_path) == {5: 2, 300: 1}


def test_a_cut_head_scores_its_tokens_as_the_whole_head_does_and_no_others(parts: Parts, spec: PipelineSpec, cut: Path) -> None:
    assert read_info(cut).vocabulary == SIZE
    ids = read_tensors(cut)["vocabulary"].long()
    assert len(ids) == SIZE and 257 in ids  # an end of a sequence can always be drafted
    hidden = torch.randn(3, read_info(cut).model.hidden_size)
    scores = []
    for draft in (parts.draft, cut):
        with staged(parts, draft) as folder:
            runner = open_parts(folder, spec).draft
        assert runner is not None
        scores.append(runner.head(hidden))
    whole, few = scores
    assert few.shape == whole.shape
    assert torch.equal(few[:, ids], whole[:, ids])
    q = distribution(few, SamplingParams(temperature=0.8))
    outside = torch.ones(q.shape[1], dtype=torch.bool).index_fill(0, ids, False)
    assert q[:, outside].sum() == 0
    torch.testing.assert_close(q[:, ids], distribution(whole[:, ids], SamplingParams(temperature=0.8)))


def test_a_greedy_draft_in_one_call_is_the_best_of_the_cut_head_step_by_step(parts: Parts, spec: PipelineSpec, cut: Path) -> None:
    with staged(parts, cut) as folder:
        runner = open_parts(folder, spec).draft
    assert runner is not None
    rows = Rows(*(torch.tensor(values, dtype=torch.int32) for values in ([71], [0], [0], [[0]])))
    drafted = runner.continue_greedily(rows, torch.tensor([3], dtype=torch.int32), None)[0][0].tolist()
    assert set(drafted) <= set(read_tensors(cut)["vocabulary"].tolist())
    token = 71
    for position, expected in enumerate(drafted):
        rows = Rows(*(torch.tensor(values, dtype=torch.int32) for values in ([token], [position], [0], [[0]])))
        token = int(runner.head(runner.layers(runner.embed(rows), rows, 0, runner.config.num_layers)).argmax())
        assert token == expected


def test_greedy_answers_are_those_of_plain_decoding_though_the_target_writes_tokens_outside(
    parts: Parts, spec: PipelineSpec, cut: Path
) -> None:
    with staged(parts, cut) as folder:
        plain, speculative = (answers(staged_engine(folder, spec, k), 0.0) for k in (0, 4))
    assert plain == speculative
    assert not {token for answer in plain for token in answer} <= set(read_tensors(cut)["vocabulary"].tolist())
