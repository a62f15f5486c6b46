"""Answers that a calibration of served engines goes by: prompts and answers of the target's own, with what the draft says of each token."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from builder.align.prompts import Prompt
from builder.decoding.exits.rule import Answers
from builder.decoding.params import SamplingParams
from builder.errors import BuildError
from builder.exits import questions
from builder.exits.passages import Part, Passage, read_passages, read_questions, to_answer, to_go_on
from builder.exits.recipe import CalibrationOptions
from builder.exits.served import ServedEngines
from builder.progress import Progress
from builder.text import Tokenizer

PORTION = 100  # prompts written, answered and judged before the next look at the clock
TOP_P = 0.95  # of questions
USED = (Part.CHOOSE, Part.TEST, Part.HELD_OUT)


@dataclass(frozen=True)
class Reader:
    """`room` is the engines' max_seq_len."""

    engines: ServedEngines
    tokenizer: Tokenizer
    room: int

    async def read(self, options: CalibrationOptions, progress: Progress, spent: Callable[[], float]) -> Mapping[Part, Answers]:
        """Portion after portion, until there are options.answers or the time is over, by `spent` seconds. EngineError when an engine fails,
        BuildError when there are too few answers."""
        prompts, found = options.prompts(), list[tuple[list[Passage], Answers]]()
        starts = list(itertools.islice(questions.beginnings(prompts, options.seed), options.answers))
        portions = [starts[n : n + PORTION] for n in range(0, len(starts), PORTION)]
        progress.stage("the target answers, the draft reads", len(portions))
        for number, portion in enumerate(portions):
            if found and spent() > options.minutes * 60:
                break
            own = [] if number else [prompt for prompt in prompts if prompt.kind != "text"]  # the prompts themselves, once
            passages = await self._write(portion, own)
            found.append((passages, await self.engines.judge(passages)))
            progress.advance(f"portion {number + 1}")
        return _by_part(found)

    async def _write(self, starts: Sequence[tuple[str, int]], prompts: Sequence[Prompt]) -> list[Passage]:
        begun = [(ids, self._asked(ids, sampling)) for ids, sampling in to_go_on(starts, self.tokenizer, self.room)]
        asked = [*read_questions(starts, await self.engines.write(begun), self.tokenizer), *prompts]
        wanted = to_answer(asked, self.tokenizer, self.room)
        return read_passages(asked, wanted, await self.engines.write(wanted))

    def _asked(self, ids: tuple[int, ...], sampling: SamplingParams) -> SamplingParams:
        """As the backend can: it has no min_p, and refuses what does not fit its context."""
        return replace(sampling, min_p=0.0, top_p=TOP_P, max_tokens=min(sampling.max_tokens, self.room - len(ids)))


def _by_part(found: Sequence[tuple[Sequence[Passage], Answers]]) -> Mapping[Part, Answers]:
    """Nothing is trained, so those that heads would learn from are tested on too."""
    passages = [passage for some, _ in found for passage in some]
    parts = [Part.TEST if passage.part is Part.LEARN else passage.part for passage in passages]
    if missing := [part.name.lower() for part in USED if part not in parts]:
        what = f"the target's text came to {len(passages)} answers, none to {missing[0]}"
        raise BuildError(what, where="early_exit.calibration", mend="Allow more answers, or more minutes")
    confidence = np.concatenate([answers.confidence for _, answers in found])
    right = np.concatenate([answers.right for _, answers in found])
    lengths = np.array([passage.rows for passage in passages])
    return {part: _only(part, np.array(parts), confidence, right, lengths) for part in USED}


def _only(
    part: Part, parts: NDArray[np.int64], confidence: NDArray[np.float64], right: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> Answers:
    rows = np.repeat(parts == part, lengths)
    return Answers(confidence[rows], right[rows], tuple(lengths[parts == part].tolist()))
