"""Answers of the target, with what they are for: learned from, looked at, tested on, or held out until the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from builder.align.corpus import fitting_tokens, text_samples
from builder.align.prompts import Prompt
from builder.decoding.params import SamplingParams
from builder.errors import BuildError
from builder.exits import questions
from builder.runtime.engine import Engine
from builder.runtime.request import FinishReason, Output, Request
from builder.text import Tokenizer

ANSWER_TOKENS = 96
SHORTEST_ANSWER = 4  # tokens
Wanted = tuple[tuple[int, ...], SamplingParams]  # a prompt's ids, and how to go on with them


class Part(IntEnum):
    """By a hash of the prompt, so that no prompt is in two parts; the shares are those of SHARES."""

    LEARN = 0  # heads are trained on these
    CHOOSE = 1  # the confidence measure and the order of thresholds come from these
    TEST = 2  # thresholds are tested on these
    HELD_OUT = 3  # agreement and disagreement are reported on these


SHARES = (40, 10, 40, 10)  # percent


@dataclass(frozen=True)
class Passage:
    """The target's greedy answer to a prompt. A user's text stands as if it were one: ids of `answer` are what is to be predicted."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    part: Part

    @property
    def rows(self) -> int:
        return len(self.answer)


def part_of(prompt: Prompt) -> Part:
    place = int(hashlib.sha256(f"exits {prompt.content}".encode()).hexdigest(), 16) % 100
    return next(part for part in Part if place < sum(SHARES[: part + 1]))


def write_questions(engine: Engine, tokenizer: Tokenizer, starts: Sequence[tuple[str, int]]) -> list[Prompt]:
    """The target goes on with each beginning; those that came to nothing are left out."""
    return read_questions(starts, _run(engine, to_go_on(starts, tokenizer, engine.settings.max_seq_len)), tokenizer)


def to_go_on(starts: Sequence[tuple[str, int]], tokenizer: Tokenizer, room: int) -> list[Wanted]:
    """What to ask the target for, of a context of `room` tokens, so that it goes on with each beginning."""
    return [(tuple(questions.opened(words, tokenizer)[-(room // 2) :]), questions.sampling(seed)) for words, seed in starts]


def read_questions(starts: Sequence[tuple[str, int]], written: Sequence[tuple[int, ...]], tokenizer: Tokenizer) -> list[Prompt]:
    found = [questions.question(words, tokenizer.decode(ids), tokenizer) for (words, _), ids in zip(starts, written, strict=True)]
    return [prompt for prompt in found if prompt is not None]


def write_passages(engine: Engine, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> list[Passage]:
    """The target's greedy answers."""
    wanted = to_answer(prompts, tokenizer, engine.settings.max_seq_len)
    return read_passages(prompts, wanted, _run(engine, wanted))


def to_answer(prompts: Sequence[Prompt], tokenizer: Tokenizer, room: int) -> list[Wanted]:
    """What to ask the target for, of a context of `room` tokens, so that it answers each prompt greedily."""
    ids = [fitting_tokens(prompt, tokenizer, room) for prompt in prompts]
    return [(prompt, SamplingParams(max_tokens=min(ANSWER_TOKENS, room - len(prompt)))) for prompt in ids]


def read_passages(prompts: Sequence[Prompt], wanted: Sequence[Wanted], written: Sequence[tuple[int, ...]]) -> list[Passage]:
    made = (Passage(asked, answer, part_of(prompt)) for prompt, (asked, _), answer in zip(prompts, wanted, written, strict=True))
    return [passage for passage in made if passage.rows >= SHORTEST_ANSWER]


def text_passages(prompts: Sequence[Prompt], tokenizer: Tokenizer, room: int) -> list[Passage]:
    """The user's texts, in pieces, to learn from only: the target did not write them."""
    return [
        Passage(sample.ids[: sample.start], sample.ids[sample.start :], Part.LEARN) for sample in text_samples(prompts, tokenizer, room)
    ]


def _run(engine: Engine, wanted: Iterable[Wanted]) -> list[tuple[int, ...]]:
    """Answers in order, as many at once as the engine runs. BuildError when one fails."""
    written: list[list[int]] = []
    waiting = list(enumerate(wanted))[::-1]
    running: set[int] = set()

    def take(output: Output) -> None:
        if output.finish_reason is FinishReason.ERROR:
            raise BuildError(f"the target failed while it wrote text to calibrate on ({output.error})", mend="Run `builder doctor`")
        written[int(output.request_id)] += output.token_ids
        if output.finish_reason is not None:
            running.discard(int(output.request_id))

    while waiting or running:
        while waiting and len(running) < engine.settings.max_batch_size:
            number, (ids, sampling) = waiting.pop()
            written.append([])
            running.add(number)
            engine.submit(Request(str(number), ids, sampling), take)
        engine.step()
    while engine.step():
        pass
    return [tuple(ids) for ids in written]
