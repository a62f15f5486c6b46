"""Logits of a head that scores some of the tokens, over the whole vocabulary."""

from __future__ import annotations

from torch import Tensor


def spread(logits: Tensor, token_ids: Tensor, vocab_size: int) -> Tensor:
    """logits [rows, tokens] of `token_ids` int64 [tokens] -> [rows, vocab_size], -inf elsewhere: those get probability 0 whatever the
    temperature, and q is then exactly what the draft draws from."""
    return logits.new_full((len(logits), vocab_size), float("-inf")).index_copy_(1, token_ids, logits)
