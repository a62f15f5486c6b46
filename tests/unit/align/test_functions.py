"""Gradients written out are those that automatic differentiation finds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from builder.align import functions
from builder.align.functions import Imitation, RmsNorm, Rotate


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


def test_the_norm_and_its_gradients_are_torchs() -> None:
    x, weight = torch.randn(3, 5, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    probe = torch.randn(3, 5, 32)
    mine, expected = RmsNorm.apply(x, weight, 1e-5, torch.float32), F.rms_norm(x, (32,), weight, 1e-5)
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(gradients((mine * probe).sum(), x, weight), gradients((expected * probe).sum(), x, weight))


def test_the_gradient_of_a_rotation_is_the_rotation_back() -> None:
    x, angles = torch.randn(2, 5, 3, 16, requires_grad=True), torch.randn(2, 5, 1, 8)
    turned = Rotate.apply(x, angles.cos(), angles.sin())
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    (back,) = gradients((turned * turned.detach()).sum(), x)
    torch.testing.assert_close(back, x.detach())
    assert not torch.allclose(turned, x)


def test_the_imitation_loss_and_its_gradients_are_the_cross_entropys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "CHUNK", 3)  # more chunks than one, the last one short
    x, head = torch.randn(7, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    probabilities, likely = torch.randn(7, 40).softmax(-1).topk(5)
    target = torch.zeros(7, 40).scatter(-1, likely, probabilities)
    mine, expected = Imitation.apply(x, head, likely, probabilities), F.cross_entropy(x @ head.T, target, reduction="sum")
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(gradients(2 * mine, x, head), gradients(2 * expected, x, head))
