"""Prompts the target writes itself, each from the first words of a shipped prompt or of one of the user's.

A calibration needs hundreds of independent prompts, and asks for no more of them than of a good sample: a chat model that is given the
start of a user's turn goes on with a question of the kind it was trained on (Xu et al. 2024, "Magpie").
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from builder.align.prompts import Prompt
from builder.decoding.params import SamplingParams
from builder.text import Tokenizer

TOKENS = 40  # of a question, beyond the words it was given
_WORDS = 4  # given, at most
_MARK = "\u241e"  # cuts the rendered template where the user's words end
_SHORTEST = 12  # characters of a question worth asking


def beginnings(pool: Sequence[Prompt], seed: int) -> Iterator[tuple[str, int]]:
    """First words, and a seed to go on with, without end: the n-th follows from `seed` and n alone."""
    texts = [_words(prompt) for prompt in pool if prompt.kind != "text"]
    number = 0
    while texts:
        chance = random.Random(f"{seed} {number}")
        words = chance.choice(texts).split()
        yield " ".join(words[: chance.randint(1, _WORDS)]), chance.getrandbits(31)
        number += 1


def opened(beginning: str, tokenizer: Tokenizer) -> list[int]:
    """Ids up to where the user's words go on; without a chat template the words alone."""
    if not tokenizer.chats:
        return tokenizer.encode(beginning, add_special_tokens=True)
    rendered = tokenizer.chat_prompt([{"role": "user", "content": beginning + _MARK}])
    return tokenizer.encode(rendered.partition(_MARK)[0], add_special_tokens=False)


def sampling(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=TOKENS, temperature=1.0, min_p=0.05, seed=seed)


def question(beginning: str, continued: str, tokenizer: Tokenizer) -> Prompt | None:
    """None when what was written is too short to ask, or begins another turn."""
    text = (beginning + continued).strip()
    if len(text) < _SHORTEST or _MARK in text:
        return None
    if not tokenizer.chats:
        return Prompt("written", "prompt", text)
    return Prompt("written", "messages", json.dumps([{"role": "user", "content": text}], ensure_ascii=False))


def _words(prompt: Prompt) -> str:
    if prompt.kind != "messages":
        return prompt.content
    return str(next(message["content"] for message in reversed(json.loads(prompt.content)) if message["role"] == "user"))
