"""Group-wise INT4 quantisation and the order of packed weights."""

from __future__ import annotations

import pytest
import torch

from builder.compile.torch_aot.int4 import quantise, relative_error
from builder.compile.torch_aot.packing import interleave, pack_dense, pack_int4, pack_scales, pad_outputs


def some_weight(n: int = 48, k: int = 128) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_weight_is_within_a_step_of_its_asymmetric_grid(group: int) -> None:
    weight = some_weight()
    quantised = quantise(weight, group, symmetric=False)
    step = quantised.scale.float().repeat_interleave(group, 1)
    assert quantised.group_size == group
    assert ((quantised.dequantise() - weight).abs() <= 0.6 * step + 0.02).all()  # half a step, and bfloat16 of the minimum


def test_weights_on_a_grid_of_fifteen_steps_survive_unchanged() -> None:
    q = torch.randint(0, 16, (32, 64), generator=torch.Generator().manual_seed(3))
    q[:, ::32], q[:, 1::32] = 0, 15  # every group touches both ends
    weight = q * 0.25 - 2.0
    assert torch.equal(quantise(weight, 32, symmetric=False).dequantise(), weight)


def test_the_scale_search_beats_plain_rounding_to_the_largest_weight() -> None:
    weight = some_weight()
    groups = weight.view(48, -1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    plain = ((groups / scale).round().clamp(-8, 7) * scale).view_as(weight)
    assert relative_error(weight, quantise(weight, 32, symmetric=True)) < (weight - plain).norm() / weight.norm()


def test_a_group_of_zeros_stays_zero() -> None:
    for symmetric in (True, False):
        assert torch.equal(quantise(torch.zeros(16, 64), 32, symmetric).dequantise(), torch.zeros(16, 64))


def test_smaller_groups_follow_the_weights_more_closely() -> None:
    errors = [relative_error(some_weight(), quantise(some_weight(), group, symmetric=True)) for group in (32, 64, 128)]
    assert errors == sorted(errors)


def test_packed_lines_hold_sixteen_outputs_of_a_few_inputs() -> None:
    weight = torch.arange(32 * 64).float().view(32, 64)
    assert torch.equal(pack_dense(weight)[1, 5, :, 0], weight[16:32, 5])
    halves = pack_dense(weight.bfloat16())
    assert torch.equal(halves[1, 5], weight.bfloat16()[16:32, 10:12])


def test_nibbles_hold_inputs_four_apart() -> None:
    q = torch.randint(0, 16, (16, 32), dtype=torch.uint8)
    packed = pack_int4(q)
    assert packed.shape == (1, 4, 16, 4)
    assert torch.equal(packed[0, 2] & 15, q[:, 16:20])
    assert torch.equal(packed[0, 2] >> 4, q[:, 20:24])


def test_scales_lie_beside_the_outputs_of_their_tile() -> None:
    scale = torch.arange(32 * 3).view(32, 3)
    assert torch.equal(pack_scales(scale)[1, 2], scale[16:, 2])


def test_gate_and_up_alternate_by_tiles() -> None:
    gate, up = torch.zeros(32, 8), torch.ones(32, 8)
    assert interleave(gate, up)[:, 0].view(4, 16)[:, 0].tolist() == [0, 1, 0, 1]


def test_outputs_are_padded_with_zeros_to_whole_units() -> None:
    padded = pad_outputs(torch.ones(33, 4))
    assert padded.shape == (64, 4)
    assert padded[33:].abs().sum() == 0
