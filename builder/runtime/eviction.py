"""What a sequence that fills its context forgets under `attention_sink`, so that it can go on."""

from __future__ import annotations


def forgotten(length: int, context: int, block_size: int) -> range:
    """Places of the tokens to drop of `length` tokens: all but the first block and the latest, half a context together.

    The first tokens stay because attention rests on them (Xiao et al. 2024, "Efficient Streaming Language Models with Attention
    Sinks"). The rest is run again at its new positions: the paper's "sliding window with re-computation", which it found as good as
    keeping old keys, and which costs one pass over half a context for each half a context of answer.
    """
    window = context // 2 - block_size
    return range(block_size, length - window)
