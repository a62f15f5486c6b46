"""The draft in plain torch: the same numbers as the reference, the same view of keys as at run time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builder.align import matrices, student
from builder.align.matrices import Fixed, Learnable
from builder.align.student import View, decode, logits
from builder.compile.reference import forward
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.int4 import quantise
from builder.compile.torch_aot.packing import interleave, pack_dense, pack_int4, pack_scales
from builder.compile.torch_aot.unpacking import read_tensors, turns_apart, turns_together, unpack_dense, unpack_int4, unpack_scales
from builder.weights import open_checkpoint
from tests.unit.align.conftest import pack
from tests.unit.tiny_models import make_tiny_model

IDS = torch.tensor([256, 70, 71, 72, 3, 9, 300, 8, 120, 44, 7, 5])
ZERO = torch.zeros(1, dtype=torch.long)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 instead of bfloat16, so that numbers can be compared closely."""
    monkeypatch.setattr(matrices, "COMPUTE", torch.float32)
    monkeypatch.setattr(student, "COMPUTE", torch.float32)


def embedding_of(folder: Path) -> Tensor:
    return open_checkpoint(str(folder), folder.parent).tensor("model.embed_tokens.weight").float()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_unpacking_is_the_inverse_of_packing(tiles: int, lines: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randint(0, 16, (16 * tiles, 8 * lines), dtype=torch.uint8, generator=generator)
    assert torch.equal(unpack_int4(pack_int4(q)), q)
    assert torch.equal(unpack_dense(pack_dense(q.bfloat16())), q.bfloat16())
    assert torch.equal(unpack_dense(pack_dense(q.float())), q.float())
    assert torch.equal(unpack_scales(pack_scales(q.float())), q.float())


def test_gate_and_up_rows_come_apart_and_together_again() -> None:
    gate, up = torch.randn(32, 64), torch.randn(32, 64)
    fused = interleave(gate, up)
    assert torch.equal(turns_apart(fused), torch.cat([gate, up]))
    assert torch.equal(turns_together(turns_apart(fused)), fused)


MODELS = {
    "llama": {"layers": 2},
    "bias": {"architecture": "qwen2"},
    "all biases": {"attention_bias": True, "mlp_bias": True},
    "qk norm, untied": {"architecture": "qwen3", "tie": False},
    "window": {"architecture": "mistral", "sliding_window": 4},
}


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS.keys())
@pytest.mark.usefixtures("exact")
def test_logits_are_those_of_the_reference(tmp_path: Path, settings: dict[str, object]) -> None:
    folder = make_tiny_model(tmp_path / "model", **settings)  # type: ignore[arg-type]
    engine = pack(folder, tmp_path / "engine", "float32")
    config, tensors = read_info(engine).model, read_tensors(engine)
    hidden, _ = decode(Fixed(tensors), config, tensors["embed"][IDS][None], ZERO, View.causal(1, len(IDS), config.sliding_window))
    expected = forward(open_checkpoint(str(folder), tmp_path).tensors(torch.float32), config, IDS)
    torch.testing.assert_close(logits(Fixed(tensors), config, hidden)[0], expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.usefixtures("exact")
def test_an_untrained_draft_is_the_packed_one(tmp_path: Path, tiny_weights: Path, symmetric: bool) -> None:
    engine = pack(tiny_weights, tmp_path / "engine", "int4", group_size=32, symmetric=symmetric)
    tensors = read_tensors(engine)
    weight = open_checkpoint(str(tiny_weights), tmp_path).tensor("model.layers.1.mlp.down_proj.weight")
    draft = Learnable(tensors)
    torch.testing.assert_close(draft.matrix("layers.1.down"), quantise(weight, 32, symmetric).dequantise())
    for name, tensor in draft.packed().items():
        assert torch.equal(tensor, tensors[name]), name


@pytest.mark.usefixtures("exact")
def test_rows_with_given_keys_equal_rows_of_a_whole_pass_when_both_are_the_same_model(tmp_path: Path, tiny_weights: Path) -> None:
    """Whatever the rounds: keys from the cache and keys made now are then the same keys."""
    engine = pack(tiny_weights, tmp_path / "engine", "float32")
    config, tensors = read_info(engine).model, read_tensors(engine)
    weights, embedded = Fixed(tensors), tensors["embed"][IDS][None]
    whole, made = decode(weights, config, embedded, ZERO, View.causal(1, len(IDS), None))
    for start, length, offset in ((4, 4, 0), (4, 3, 2), (0, 4, 1), (7, 1, 0)):
        first, rows = torch.tensor([start]), len(IDS) - start
        view = View.rounds(first, rows, len(IDS), length, offset, None)
        part, _ = decode(weights, config, embedded[:, start:], first, view, made)
        torch.testing.assert_close(part, whole[:, start:], atol=1e-4, rtol=1e-4)


def test_a_row_sees_the_targets_keys_before_its_round_and_its_own_rounds_after() -> None:
    mask = View.rounds(torch.tensor([3]), rows=4, given=6, round_length=2, offset=0, window=None).mask[0].int().tolist()
    assert mask == [
        [1, 1, 1, 0, 0, 0, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 1, 1],
    ]


@given(st.integers(0, 9), st.integers(1, 12), st.integers(1, 5), st.integers(0, 4), st.none() | st.integers(1, 6))
def test_a_row_sees_each_earlier_position_exactly_once(first: int, rows: int, length: int, offset: int, window: int | None) -> None:
    given_keys = first + rows
    mask = View.rounds(torch.tensor([first]), rows, given_keys, length, offset % length, window).mask[0]
    for row in range(rows):
        seen = mask[row, :given_keys].nonzero().flatten().tolist() + [
            first + own for own in mask[row, given_keys:].nonzero().flatten().tolist()
        ]
        position = first + row
        oldest = 0 if window is None else max(0, position - window + 1)
        assert sorted(seen) == list(range(oldest, position + 1))
