"""A lab on toy runners, and a report made of it with times that are set, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from builder.bench.calibration import Costs
from builder.bench.identity import Identity
from builder.bench.lab import Lab, Setting
from builder.bench.peers import Peer
from builder.bench.prompts import Prompt
from builder.bench.report import Machine, Report
from builder.bench.roofline import Roofline
from builder.bench.speculation import Sample, results
from builder.bench.spread import Spread
from builder.bench.steps import Answer, Step
from builder.bench.through_triton import TritonResult
from builder.plan.cost import StepTimes
from builder.repository.engine import EngineParts
from builder.runtime.settings import EngineSettings
from tests.unit.toy_runner import toy_pair

COSTS = Costs(4, StepTimes(plain=0.010, draft=0.002, verify=0.011), plain_overhead=0.0005, round_overhead=0.001)
ONE = Spread.of([1.0])


class Letters:
    """One token a character, a to k."""

    chats = True

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> str:
        return f"<{messages[0]['content']}>"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert add_special_tokens != text.startswith("<")
        return [ord(letter) % 11 for letter in text]


@pytest.fixture
def lab() -> Lab:
    return make_lab()


def make_lab(*, draft: bool = True, eos: frozenset[int] = frozenset(), noise: float = 0.3, **settings: Any) -> Lab:
    target, small = toy_pair(shared_kv=True, noise=noise)
    limits = EngineSettings(max_batch_size=8, max_seq_len=120, max_num_tokens=64, block_size=4, num_blocks=400)
    target.allocate_cache(limits.num_blocks, limits.block_size)
    parts: Any = EngineParts(target, small if draft else None, replace(limits, **settings), eos, Letters())  # type: ignore[arg-type]
    return Lab(parts, 0.5)


def answer(steps: Sequence[Step], tokens: Sequence[int] = ()) -> Answer:
    count = 1 + sum(step.tokens for step in steps)
    return Answer(tuple(tokens) or tuple(range(count)), tuple(steps), 0.1, count)


def rounds(*accepted: int, k: int = 4, seconds: float = 0.02) -> list[Step]:
    """Rounds of a draft model that kept so many of K tokens."""
    return [Step(kept + 1, seconds, k, kept, k, 0.008, 0.011) for kept in accepted]


def sample(kind: str = "facts", name: str = "a", k: int = 4, method: str = "draft_model", seconds: float = 0.02) -> Sample:
    plain = answer([Step(1, 0.0105)] * 40)
    return Sample(Prompt(kind, name, name), Setting(k, method), answer(rounds(*[min(k, 3)] * 10, k=k, seconds=seconds)), plain, COSTS)


@pytest.fixture
def report() -> Report:
    samples = tuple(
        sample(kind, f"{kind} <{k}>", k, method, 0.02 + 0.001 * k)
        for kind in ("facts", "code", "rewrite")
        for k in (2, 4)
        for method in ("draft_model", "ngram", "hybrid")
    )
    roof = Roofline(270_000_000, 4_000_000, 270_000_000, 128, 0.010, 0.009)
    return Report(
        pipeline="tiny",
        version=3,
        published=Setting(4, "hybrid"),
        tokens=64,
        prompts=tuple(one.prompt for one in samples),
        machine=Machine("A <CPU>", 2, "avx512", 2, 0.4),
        plain=Spread.of([90.0, 95.0, 99.0]),
        time_to_first_token=Spread.of([0.08]),
        prompt_tokens=Spread.of([50]),
        samples=samples,
        results=tuple(results(samples)),
        best=Setting(2, "hybrid"),
        costs={4: COSTS},
        rooflines={"target": roof, "draft": replace(roof, weight_bytes=70_000_000, step=0.002, limit=0.0019)},
        identity=Identity(8, 8),
        load_seconds=1.5,
        triton=TritonResult(Setting(4, "hybrid"), ONE, ONE, Spread.of([0.95]), ONE, 5.0, 900_000_000, {"client": 0.001}),
        peers=(Peer("llama.cpp", "plain", "bf16", 80.0, 96.0, "plain", {"version": "1"}),),
        seconds=30.0,
    )
