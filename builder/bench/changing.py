"""`builder bench --changing`: adaptive K against each fixed K on traffic whose acceptance changes every so many seconds (M5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from builder.bench.lab import PLAIN, Lab, Setting
from builder.bench.prompts import select
from builder.bench.report import Machine
from builder.bench.streams import ask, open_loop, run
from builder.bench.tables import Table
from builder.decoding.params import SamplingParams
from builder.errors import SpecError
from builder.repository.models.folder import read_spec
from builder.repository.versions import Version
from builder.runtime.engine import Engine

ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class Phase:
    """One kind of traffic, at one stream."""

    prompts: str  # a class of the shipped ones
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.prompts}, temperature {self.temperature:g}"


# In turn: drafts are kept often, nearly always (copied from the prompt), and seldom.
PHASES = (Phase("facts", 0.0), Phase("rewrite", 0.0), Phase("facts", 1.5))


@dataclass(frozen=True)
class Arm:
    """All phases with one rule for K: `k` 0 is plain decoding. Tokens per second by phase, then over all."""

    rule: str  # adaptive | fixed
    k: int  # of a fixed rule; the largest of the adaptive one
    by_phase: tuple[float, ...]
    tokens_per_second: float

    @property
    def name(self) -> str:
        return ADAPTIVE if self.rule == ADAPTIVE else "plain" if not self.k else f"K = {self.k}"


@dataclass(frozen=True)
class ChangingReport:
    """The adaptive rule is measured first and last, so that a machine that slows down favours nobody; its speed is the mean."""

    pipeline: str
    version: int
    machine: Machine
    seconds: float  # of a phase
    arms: tuple[Arm, ...]
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def adaptive(self) -> float:
        speeds = [arm.tokens_per_second for arm in self.arms if arm.rule == ADAPTIVE]
        return sum(speeds) / len(speeds)

    @property
    def best_fixed(self) -> Arm:
        """In hindsight, plain decoding among them."""
        return max((arm for arm in self.arms if arm.rule != ADAPTIVE), key=lambda arm: arm.tokens_per_second)

    @property
    def over_best_fixed(self) -> float:
        return self.adaptive / self.best_fixed.tokens_per_second

    def to_json(self) -> dict[str, Any]:
        head = {"pipeline": self.pipeline, "version": self.version, "created": self.created, "machine": asdict(self.machine)}
        result = {"adaptive_over_best_fixed": self.over_best_fixed, "best_fixed_k": self.best_fixed.k}
        return (
            head | result | {"phase_seconds": self.seconds, "phases": [p.name for p in PHASES], "arms": [asdict(arm) for arm in self.arms]}
        )

    def table(self) -> Table:
        rows = [(arm.name, *(f"{speed:.1f}" for speed in arm.by_phase), f"{arm.tokens_per_second:.1f}") for arm in self.arms]
        note = f"Tokens per second at one stream, phases of {self.seconds:g} s in turn, in the order measured."
        return Table("Changing traffic", ("rule", *(phase.name for phase in PHASES), "all"), tuple(rows), note=note)


def measure_changing(version: Version, seconds: float, tokens: int, say: Callable[[str], None]) -> ChangingReport:
    """SpecError for a version that does not speculate; EngineError when it cannot run here."""
    spec = read_spec(version.decode_folder)
    if spec.speculation.proposer == "none":
        raise SpecError("this pipeline does not speculate", where="speculation.proposer", mend="Give it one, such as hybrid")
    say("loading the engines")
    lab = Lab.open(version.decode_folder, spec)
    most = Setting(spec.speculation.max_draft_tokens, spec.speculation.proposer)
    fixed = [Setting(k, most.method) if k else PLAIN for k in range(most.draft_tokens + 1)]
    plan = [(ADAPTIVE, most), *(("fixed", setting) for setting in fixed), (ADAPTIVE, most)]
    arms = tuple(measure_arm(lab, rule, setting, seconds, tokens, say) for rule, setting in plan)
    machine = Machine.of(lab.parts.target.instruction_set, spec.engine.threads)
    return ChangingReport(version.pipeline, version.number, machine, seconds, arms)


def measure_arm(lab: Lab, rule: str, setting: Setting, seconds: float, tokens: int, say: Callable[[str], None] = lambda _: None) -> Arm:
    """One loop through all phases: what it has learned in one is what it enters the next with."""
    parts = replace(lab.parts, settings=replace(lab.parts.settings, adaptive=rule == ADAPTIVE))
    engine = open_loop(replace(lab, parts=parts), setting, 1)
    made, took, by_phase = 0, 0.0, []
    for phase in PHASES:
        say(f"{rule}, K {setting.draft_tokens}: {phase.name}")
        prompts = [lab.fit(prompt.ids(lab.parts.tokenizer), tokens) for prompt in select([phase.prompts])]
        count, spent = _run(engine, prompts, phase.temperature, seconds, tokens)
        by_phase.append(count / spent)
        made, took = made + count, took + spent
    return Arm(rule, setting.draft_tokens, tuple(by_phase), made / took)


def _run(engine: Engine, prompts: Sequence[Sequence[int]], temperature: float, seconds: float, tokens: int) -> tuple[int, float]:
    """One answer after another until the time is over, the last one whole: tokens and seconds."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=temperature)
    made, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or not made:
        stream = ask(engine, prompts[made // tokens % len(prompts)], sampling)
        run(engine, [stream])
        made += stream.tokens
    return made, spent
