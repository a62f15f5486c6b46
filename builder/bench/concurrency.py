"""`builder bench --concurrency`: total speed of many streams, plain and speculative, and how one disturbs another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.bench.lab import PLAIN, Lab, Setting
from builder.bench.streams import Span, ask, burst, open_loop, percentile, run, sustain

LONG_PROMPT, SHARED_PREFIX = 2000, 1000  # tokens
ROUNDS = 3  # answers of each stream, on average, while all streams run
WARM_UP = 48  # tokens of each stream before any is timed
WARM_STEPS = 24  # chunks a stream gets before its neighbour comes: their gaps are the undisturbed ones


@dataclass(frozen=True)
class Load:
    """So many streams in one setting; medians over the blocks. Times in seconds."""

    streams: int
    setting: Setting
    tokens_per_second: float  # of all streams together, while each that ends is replaced by the next
    burst_tokens_per_second: float  # all asked at once and none replaced: from the first request to the last token
    gap_p50: float
    gap_p99: float
    ttft_p50: float
    ttft_p95: float
    draft_tokens: float  # mean drafted a round: the K that was used; 0.0 for plain decoding

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Probes:
    """How streams disturb and help each other, in seconds."""

    quiet_gap: float  # median gap of a stream alone
    disturbed_p99: float  # its gap while a neighbour's prompt of `prompt_tokens` is prefilled
    prompt_tokens: int
    first_ttft: float  # of a prompt that opens with `prefix_tokens` nobody has asked before
    second_ttft: float  # of the next prompt with the same opening
    prefix_tokens: int

    @property
    def interference(self) -> float:
        return self.disturbed_p99 / self.quiet_gap

    @property
    def prefix_share(self) -> float:
        return self.second_ttft / self.first_ttft

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"interference": self.interference, "prefix_share": self.prefix_share}


def measure_loads(
    lab: Lab,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    levels: Sequence[int],
    speculative: Setting | None,
    blocks: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Load]:
    """Each level plainly and speculatively in turn, `blocks` times, after a warm-up; `prompts` are token ids, taken round and round.

    A block is a burst and then ROUNDS answers of each stream.
    """
    loads = []
    settings = [PLAIN] if speculative is None else [PLAIN, speculative]
    for level in levels:
        rounds = [prompts[place % len(prompts)] for place in range(level * ROUNDS)]
        chosen = rounds[:level]
        made: dict[Setting, list[Load]] = {setting: [] for setting in settings}
        engines = {setting: open_loop(lab, setting, level) for setting in settings}
        for engine in engines.values():  # the draft-length control learns what steps cost while it serves
            burst(engine, chosen, min(tokens, WARM_UP))
        for block in range(blocks):
            for setting, engine in engines.items():
                on_progress(f"{level} streams, {setting.method} ({block + 1} of {blocks})")
                at_once = burst(engine, chosen, tokens).tokens_per_second
                made[setting].append(_load(setting, level, at_once, sustain(engine, rounds, tokens, level)))
        loads += [_median(found) for found in made.values()]
    return loads


def measure_probes(lab: Lab, text: Sequence[int]) -> Probes:
    """`text`: token ids to make prompts of. Both probes decode plainly."""
    room = lab.parts.settings.max_seq_len
    long = min(LONG_PROMPT, room - 2)
    engine = open_loop(lab, PLAIN, 2)
    reader = ask(engine, _tokens(text, 0, 32), min(room - 32, 512))
    run(engine, [], lambda: len(reader.arrivals) > WARM_STEPS)
    quiet, heard = statistics.median(reader.gaps), len(reader.gaps)
    neighbour = ask(engine, _tokens(text, 1, long), 1)
    run(engine, [], lambda: bool(neighbour.arrivals))
    disturbed = percentile(reader.gaps[heard:], 0.99)
    run(engine, [reader, neighbour])

    prefix = min(SHARED_PREFIX, room - 40)
    shared = _tokens(text, 2, prefix)
    engine = open_loop(lab, PLAIN, 1, prefix_caching=True)
    times = []
    for place in (3, 4):
        stream = ask(engine, [*shared, *_tokens(text, place, 16)], 2)
        run(engine, [stream])
        times.append(stream.time_to_first_token)
    return Probes(quiet, disturbed, long, times[0], times[1], prefix)


def _tokens(text: Sequence[int], start: int, length: int) -> list[int]:
    """`length` tokens of the endless repetition of `text`, from another place for each `start`."""
    return [text[(start * 7 + place) % len(text)] for place in range(length)]


def _load(setting: Setting, level: int, at_once: float, span: Span) -> Load:
    gaps = [gap for stream in span.streams for gap in stream.gaps]
    first = [stream.time_to_first_token for stream in span.streams]
    stats = [stream.stats for stream in span.streams if stream.stats is not None]
    rounds = sum(found.num_spec_steps for found in stats)
    drafted = sum(found.num_draft_tokens for found in stats)
    return Load(
        streams=level,
        setting=setting,
        tokens_per_second=span.tokens_per_second,
        burst_tokens_per_second=at_once,
        gap_p50=percentile(gaps, 0.5),
        gap_p99=percentile(gaps, 0.99),
        ttft_p50=percentile(first, 0.5),
        ttft_p95=percentile(first, 0.95),
        draft_tokens=drafted / rounds if rounds else 0.0,
    )


def _median(loads: Sequence[Load]) -> Load:
    def middle(name: str) -> float:
        return float(statistics.median(getattr(load, name) for load in loads))

    names = ("tokens_per_second", "burst_tokens_per_second", "gap_p50", "gap_p99", "ttft_p50", "ttft_p95", "draft_tokens")
    return Load(loads[0].streams, loads[0].setting, *(middle(name) for name in names))
