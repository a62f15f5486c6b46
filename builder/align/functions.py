"""Differentiable pieces of a training step with gradients written out.

Between its matrix products a step is bound by memory: each function here goes over its tensors a few times, where the pieces it is made
of would go over them ten times (a step of 1024 rows spent two thirds of 6.9 s outside products).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 128  # rows whose logits exist at once: 25 MB for a vocabulary of 49152


class RmsNorm(torch.autograd.Function):
    """y = weight x / rms(x) in `dtype` (Zhang and Sennrich 2019); x float32 [..., width], weight [width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        y: Tensor = (x * scale).mul_(weight).to(dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        unit, g = x * scale, upstream.float()
        product = g * unit
        for_weight = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        shift = (product @ weight).unsqueeze(-1) / x.shape[-1]
        return (g * weight).sub_(unit.mul_(shift)).mul_(scale), for_weight, None, None


class Rotate(torch.autograd.Function):
    """Rotary embedding (Su et al. 2021), halves in Hugging Face's order. x [..., dim]; cos and sin [..., dim / 2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(upstream, cos, -sin), None, None  # the inverse rotation


class Imitation(torch.autograd.Function):
    """Sum over rows of the cross-entropy, in nats, of softmax(x head^T) to the teacher's probabilities.

    x [rows, width] and head [vocabulary, width] of one dtype; likely int64 [rows, top] and probabilities float32 [rows, top]. The
    gradient, probability less the teacher's, is made with the loss, so that no logits are kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, head: Tensor, likely: Tensor, probabilities: Tensor) -> Tensor:
        loss = torch.zeros(())
        for_x, for_head = torch.empty_like(x), None
        wanted = zip(*(t.split(CHUNK) for t in (x, for_x, likely, probabilities)), strict=True)
        for rows, out, ids, target in wanted:
            scores = (rows @ head.T).float()
            mass = target.sum(-1, keepdim=True)
            total = scores.logsumexp(-1, keepdim=True)
            loss += (total * mass).sum() - (scores.gather(-1, ids) * target).sum()
            g = scores.sub_(total).exp_().mul_(mass).scatter_add_(-1, ids, -target).to(x.dtype)
            torch.mm(g, head, out=out)
            for_head = g.T @ rows if for_head is None else for_head.addmm_(g.T, rows)
        ctx.save_for_backward(for_x, for_head)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        for_x, for_head = ctx.saved_tensors
        return for_x * upstream, for_head * upstream, None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    turned = torch.empty(x.shape)
    first, second = turned.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=second).addcmul_(a, sin)
    return turned.to(x.dtype)
