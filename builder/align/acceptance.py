"""How many drafted tokens the target accepts on held-out prompts, through the real engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.bench.acceptance import Acceptance
from builder.decoding.params import SamplingParams
from builder.errors import BuildError
from builder.runtime.engine import Engine
from builder.runtime.request import Output, Request

DRAFT_TOKENS = 4  # K of the comparison, whatever the pipeline runs with
MAX_TOKENS = 48


def measure(engine: Engine, prompts: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Acceptance]:
    """Greedy acceptance by category of (category, prompt ids), all prompts in one batch.

    Raises BuildError when the engine fails on one.
    """
    last: dict[int, Output] = {}
    room = engine.settings.max_seq_len

    def take(output: Output) -> None:
        last[int(output.request_id)] = output

    waiting = list(enumerate(prompts))
    while waiting or engine.step():
        while waiting and waiting[0][0] - _finished(last) < engine.settings.max_batch_size:
            number, (_, ids) = waiting.pop(0)
            engine.submit(Request(str(number), ids, SamplingParams(max_tokens=min(MAX_TOKENS, room - len(ids)))), take)
        if waiting:
            engine.step()
    sums: dict[str, Acceptance] = {}
    for number, (category, _) in enumerate(prompts):
        stats = last[number].stats
        if stats is None or last[number].error:
            raise BuildError(f"the engine failed on a held-out prompt ({last[number].error})", mend="Run `builder doctor`")
        found = Acceptance(stats.num_spec_steps, stats.num_draft_tokens, stats.num_accepted_draft_tokens)
        sums[category] = total([sums.get(category, Acceptance(0, 0, 0)), found])
    return sums


def total(parts: Sequence[Acceptance]) -> Acceptance:
    return Acceptance(sum(p.rounds for p in parts), sum(p.drafted for p in parts), sum(p.accepted for p in parts))


def described(by_category: Mapping[str, Acceptance]) -> dict[str, object]:
    """rate and length over all prompts, and the length of each category."""
    whole = total(list(by_category.values()))
    lengths = {category: round(acceptance.length, 3) for category, acceptance in sorted(by_category.items())}
    return {"rate": round(whole.rate, 4), "length": round(whole.length, 3), "lengths": lengths}


def _finished(last: Mapping[int, Output]) -> int:
    return sum(output.finish_reason is not None for output in last.values())
