"""Text the target writes itself, through its compiled engine, as the draft's training text."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from builder.align.prompts import TEXT_TOKENS, Prompt, prompt_tokens
from builder.decoding.params import SamplingParams
from builder.errors import BuildError
from builder.runtime.engine import Engine
from builder.runtime.request import Cancellation, FinishReason, Output, Request
from builder.text import Tokenizer

ANSWER_TOKENS = 128
TEMPERATURES = (0.0, 0.8)  # greedy first, then sampled: what is accepted greedily should survive a little away from the greedy path
_FEWEST = 8  # an answer cut shorter than this by the end of the time teaches little
_LONGEST_PROMPT = 384  # tokens; a longer prompt keeps its end


@dataclass(frozen=True)
class Sample:
    """ids[start:] is what the target wrote (or a user's text from its second token); the draft learns to predict those."""

    ids: tuple[int, ...]
    start: int  # at least 1

    @property
    def rows(self) -> int:
        """Positions that predict a token of the answer: start - 1 .. len(ids) - 2."""
        return len(self.ids) - self.start


def text_samples(prompts: Sequence[Prompt], tokenizer: Tokenizer, room: int) -> list[Sample]:
    """The user's texts in pieces of at most `room` tokens, learned as they stand."""
    size = min(TEXT_TOKENS, room)
    pieces = []
    for prompt in prompts:
        ids = tuple(prompt_tokens(prompt, tokenizer))
        pieces += [ids[i : i + size] for i in range(0, len(ids), size)]
    return [Sample(piece, 1) for piece in pieces if len(piece) >= _FEWEST]


def fitting_tokens(prompt: Prompt, tokenizer: Tokenizer, room: int) -> tuple[int, ...]:
    """The prompt's ids, its end if it is long: at least half of `room` is left to the answer."""
    return tuple(prompt_tokens(prompt, tokenizer)[-min(_LONGEST_PROMPT, room // 2) :])


def write_samples(
    engine: Engine, prompts: Sequence[tuple[int, ...]], *, seed: int, samples: int | None, over: Callable[[], bool] = lambda: False
) -> list[Sample]:
    """The target's answers in rounds over all prompts, at each of TEMPERATURES in turn, as many at once as the engine runs.

    Ends after `samples` rounds, or when `over()`; what is unfinished then is kept if it is long enough to teach.
    The same seed gives the same answers in the same order (results do not depend on neighbours in the batch); `over` only cuts them.
    Raises BuildError when the engine fails.
    """
    answers: dict[int, list[int]] = {}
    asked: list[tuple[int, ...]] = []
    running: set[int] = set()

    def take(output: Output) -> None:
        number = int(output.request_id)
        answers[number] += output.token_ids
        if output.finish_reason is not None:
            running.discard(number)
        if output.finish_reason is FinishReason.ERROR:
            raise BuildError(f"the target failed while it wrote training text ({output.error})", mend="Run `builder doctor`")

    room = engine.settings.max_seq_len
    wishes = _wishes(prompts, seed, samples)
    while not over():
        for number, (ids, sampling) in zip(itertools.count(len(asked)), itertools.islice(wishes, _free(engine, running)), strict=False):
            asked.append(ids)
            answers[number] = []
            running.add(number)
            params = SamplingParams(max_tokens=min(ANSWER_TOKENS, room - len(ids)), temperature=sampling[0], seed=sampling[1])
            engine.submit(Request(str(number), ids, params), take)
        if not running:
            break
        engine.step()
    for number in running:
        engine.cancel(str(number), Cancellation.DEADLINE)
    while engine.step():
        pass
    written = [Sample(ids + tuple(answers[number]), len(ids)) for number, ids in enumerate(asked)]
    return [sample for sample in written if sample.rows >= _FEWEST]


def _free(engine: Engine, running: set[int]) -> int:
    return engine.settings.max_batch_size - len(running)


def _wishes(prompts: Sequence[tuple[int, ...]], seed: int, samples: int | None) -> Iterator[tuple[tuple[int, ...], tuple[float, int]]]:
    """(prompt, (temperature, seed)) without end, or `samples` times over all prompts."""
    rounds = itertools.count() if samples is None else range(samples)
    for turn in rounds if prompts else ():
        for place, ids in enumerate(prompts):
            digest = hashlib.sha256(f"{seed} {turn} {place}".encode()).digest()
            yield ids, (TEMPERATURES[turn % len(TEMPERATURES)], int.from_bytes(digest[:4], "big"))
