"""Learning from lessons: losses fall, runs repeat, an interrupted run goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from builder.align.corpus import Sample
from builder.align.matrices import Learnable
from builder.align.progress_file import Standing, read_standing, write_standing
from builder.align.staging import Parts
from builder.align.student import View, decode, logits
from builder.align.teacher import Teacher, collate
from builder.align.training import Training
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.unpacking import read_tensors

IDS = (256, 70, 71, 72, 3, 9, 300, 8, 120, 44, 7, 5)
SAMPLES = [Sample(IDS, 4), Sample(IDS[3:] + IDS, 7), Sample(IDS[:6], 5), Sample(IDS[::-1], 2)]


def make_training(parts: Parts, *, shared: bool = True, seed: int = 0) -> Training:
    config = read_info(parts.draft).model
    teacher = Teacher(read_tensors(parts.target), config, config.num_layers if shared else 0)
    draft = Learnable(read_tensors(parts.draft))
    return Training(draft, config, teacher.embedding, teacher, SAMPLES, shared=shared, round_length=4, seed=seed)


def run(training: Training, steps: int) -> list[float]:
    losses: list[float] = []
    training.run(lambda: training.steps / steps, losses.append)
    return losses


def excess(training: Training, shared: bool) -> float:
    """Loss above the target's own entropy: 0 when the draft is the target."""
    batch = collate(training._teacher.lessons(SAMPLES), shared=shared)
    entropy = -(batch.probabilities * batch.probabilities.log()).sum(-1).mean()
    training.draft.refresh()
    return float(training.loss(batch, 0).detach() - entropy)


@pytest.mark.parametrize("shared", [True, False])
def test_a_few_steps_bring_the_draft_closer_to_its_target(parts: Parts, shared: bool) -> None:
    training = make_training(parts, shared=shared)
    before = excess(training, shared)
    run(training, 12)
    assert 0 < excess(training, shared) < 0.8 * before


def test_the_same_seed_and_steps_give_the_same_draft_and_another_seed_another(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.align.training.ROWS", 8)  # several batches an epoch, so that their order matters
    first, again, other = (make_training(parts, seed=seed) for seed in (0, 0, 1))
    losses = [run(training, 5) for training in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(tensor, again.draft.packed()[name]) for name, tensor in first.draft.packed().items())


def test_an_interrupted_training_goes_on_to_the_same_draft(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.align.training.ROWS", 8)
    whole, half, resumed = (make_training(parts) for _ in range(3))
    run(whole, 6)
    half.run(lambda: 1.0 if half.steps == 3 else half.steps / 6)
    path = tmp_path / "standing.safetensors"
    write_standing(path, Standing(SAMPLES, 12.5, 2.5, half.state()))
    standing = read_standing(path)
    assert standing is not None
    assert (list(standing.samples), standing.seconds, standing.began) == (SAMPLES, 12.5, 2.5)
    resumed.restore(standing.training)
    run(resumed, 6)
    assert torch.equal(whole.draft.parameters, resumed.draft.parameters)
    assert [path.name for path in tmp_path.iterdir()] == ["standing.safetensors"]


def test_a_standing_that_is_missing_or_torn_is_none(parts: Parts, tmp_path: Path) -> None:
    path = tmp_path / "standing.safetensors"
    assert read_standing(path) is None
    write_standing(path, Standing(SAMPLES, 1.0, 0.0, make_training(parts).state()))
    path.write_bytes(path.read_bytes()[:-7])
    assert read_standing(path) is None


def test_the_loss_is_the_cross_entropy_to_the_targets_distribution(parts: Parts) -> None:
    training = make_training(parts, shared=False)
    batch = collate(training._teacher.lessons(SAMPLES[:1]), shared=False)
    config = read_info(parts.draft).model
    hidden, _ = decode(training.draft, config, training._embedding[batch.ids], batch.first, View.causal(1, len(IDS) - 1, None))
    target = torch.zeros(len(batch.likely), config.vocab_size).scatter(-1, batch.likely, batch.probabilities)
    expected = F.cross_entropy(logits(training.draft, config, hidden[0, 3:]), target)
    torch.testing.assert_close(training.loss(batch, 0), expected, rtol=1e-4, atol=1e-4)


def test_only_answer_rows_run_when_the_cache_is_shared(parts: Parts) -> None:
    teacher = make_training(parts)._teacher
    batch = collate(teacher.lessons(SAMPLES), shared=True)
    assert batch.ids.shape == (4, 14)  # the longest answer: 21 tokens less a prompt of 7
    assert batch.first.tolist() == [3, 6, 4, 1]
    assert int(batch.taught.sum()) == sum(sample.rows for sample in SAMPLES) == len(batch.likely)
    whole = collate(teacher.lessons(SAMPLES), shared=False)
    assert whole.first.tolist() == [0] * 4
    assert torch.equal(whole.likely, batch.likely)
