"""Exit heads: they begin as the target's own, learn, go on where they stood, and say packed what they said in torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.align.staging import Parts
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.library import LIBRARY
from builder.compile.torch_aot.unpacking import read_tensors, unpack_dense
from builder.decoding.exits.confidence import probability
from builder.errors import EngineError
from builder.exits.head import COMPUTE, LearnableHead
from builder.exits.training import ROWS, Lessons, Training
from builder.runtime.runners.exit_head import ANOTHER, TorchAotExitHead, load_exit_head
from builder.runtime.runners.torch_aot import load_runner

KEPT = torch.arange(0, 300, 2)


@pytest.fixture
def head(parts: Parts) -> LearnableHead:
    tensors, info = read_tensors(parts.target), read_info(parts.target)
    rows = unpack_dense(tensors["head.weight"])[KEPT].float()
    return LearnableHead(tensors["norm"], rows, 32, info.model.rms_norm_eps, seed=0)


@pytest.fixture
def lessons() -> Lessons:
    """Which token follows is in the state: a linear map can learn it."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3 * ROWS, 64, generator=generator)
    likely = hidden[:, :40].argmax(-1, keepdim=True).int()  # odd ones have no row in the head
    return Lessons.of(hidden, likely, torch.ones(len(hidden), 1), KEPT)


def test_the_first_state_is_the_target_s_norm_of_the_raw_one(parts: Parts, head: LearnableHead) -> None:
    hidden = torch.randn(5, 64)
    norm = read_tensors(parts.target)["norm"]
    expected = hidden * (hidden.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm
    torch.testing.assert_close(head.state(hidden).float(), expected, rtol=2e-2, atol=2e-2)


def test_mass_outside_the_head_s_rows_goes_to_another_token() -> None:
    likely, shares = torch.tensor([[4, 7, 2]]), torch.tensor([[0.5, 0.2, 0.1]])
    found = Lessons.of(torch.zeros(1, 64), likely, shares, torch.tensor([2, 4, 9]))
    assert found.likely.tolist() == [[1, 3, 0, 3]]
    assert found.probabilities.tolist() == [pytest.approx([0.5, 0.0, 0.1, 0.4])]


def test_training_lowers_the_loss_and_a_restored_run_ends_with_the_same_bits(parts: Parts, lessons: Lessons) -> None:
    def made() -> Training:
        tensors, info = read_tensors(parts.target), read_info(parts.target)
        rows = unpack_dense(tensors["head.weight"])[KEPT].float()
        return Training(LearnableHead(tensors["norm"], rows, 32, info.model.rms_norm_eps, seed=0), lessons, seed=1)

    whole, losses = made(), []
    whole.run(lambda: whole.steps / 20, losses.append)
    assert losses[-1] < 0.99 * losses[0]
    half, rest = made(), made()
    half.run(lambda: 1.0 if half.steps >= 8 else half.steps / 20)
    rest.restore({name: tensor.clone() for name, tensor in half.state().items()})
    rest.run(lambda: rest.steps / 20)
    assert all(torch.equal(a, b) for a, b in zip(whole.head.parameters(), rest.head.parameters(), strict=True))


@pytest.mark.parametrize("width", [32, 0])
def test_the_packed_head_says_what_the_learned_one_said(parts: Parts, lessons: Lessons, width: int, tmp_path: Path) -> None:
    tensors, info = read_tensors(parts.target), read_info(parts.target)
    rows = unpack_dense(tensors["head.weight"])[KEPT].float()
    training = Training(LearnableHead(tensors["norm"], rows, width, info.model.rms_norm_eps, seed=0), lessons, seed=1)
    training.run(lambda: training.steps / 20)
    with torch.no_grad():
        training.head.another.copy_(4 * training.head.state(lessons.hidden[:1]))  # the first row's token is another one
    training.head.write(tmp_path / "head", info.model, KEPT, "fingerprint")
    packed = load_exit_head(tmp_path / "head", parts.kernels / LIBRARY, threads=1, cpus=(), instruction_set="auto")
    hidden = lessons.hidden[:400]
    with torch.no_grad():
        learned = training.head
        logits = learned.state(hidden).float() @ torch.cat([learned._rows, learned.another.to(COMPUTE)]).float().T
    found = packed.logits(hidden)
    assert found.shape == (400, len(KEPT) + 1)
    assert float((found - logits).norm() / logits.norm()) < 0.05  # the kernels round activations to eight bits
    tokens, confidence = packed.say(hidden, probability)
    expected = torch.cat([KEPT, torch.tensor([ANOTHER])])[logits.argmax(-1)]
    assert sum(a == b for a, b in zip(tokens, expected.tolist(), strict=True)) > 380
    assert all(sure == 0.0 for token, sure in zip(tokens, confidence, strict=True) if token == ANOTHER)
    assert ANOTHER in tokens and all(token in KEPT.tolist() for token in tokens if token != ANOTHER)


def test_an_engine_without_a_map_is_no_exit_head(parts: Parts) -> None:
    with pytest.raises(EngineError, match="no exit head"):
        TorchAotExitHead(load_runner(parts.target, parts.kernels / LIBRARY, max_seq_len=16, threads=1))
