"""Adaptive K against each fixed K on changing traffic."""

from __future__ import annotations

import pytest

from builder.bench import changing
from builder.bench.changing import ADAPTIVE, PHASES, Arm, ChangingReport, measure_arm
from builder.bench.lab import PLAIN, Setting
from builder.bench.report import Machine
from builder.runtime.engine import Engine
from tests.unit.bench.conftest import make_lab


def arm(rule: str, k: int, speed: float) -> Arm:
    return Arm(rule, k, (speed,) * len(PHASES), speed)


def test_the_adaptive_rule_is_held_against_the_best_fixed_one_plain_among_them() -> None:
    arms = (arm(ADAPTIVE, 2, 90.0), arm("fixed", 0, 100.0), arm("fixed", 1, 80.0), arm("fixed", 2, 96.0), arm(ADAPTIVE, 2, 100.0))
    report = ChangingReport("p", 1, Machine("cpu", 2, "amx", 2, 0.5), 30.0, arms)
    assert (report.best_fixed.name, report.over_best_fixed) == ("plain", 0.95)
    document = report.to_json()
    assert (document["adaptive_over_best_fixed"], document["best_fixed_k"]) == (0.95, 0)
    assert [row[0] for row in report.table().rows] == [ADAPTIVE, "plain", "K = 1", "K = 2", ADAPTIVE]


@pytest.mark.parametrize(
    ("rule", "setting"), [(ADAPTIVE, Setting(2, "draft_model")), ("fixed", Setting(1, "draft_model")), ("fixed", PLAIN)]
)
def test_an_arm_is_one_loop_through_all_phases(rule: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Engine, float, int]] = []

    def note(engine, prompts, temperature, seconds, tokens):  # type: ignore[no-untyped-def]
        asked.append((engine, temperature, len(prompts)))
        return run(engine, prompts, temperature, seconds, tokens)

    run = changing._run
    monkeypatch.setattr(changing, "_run", note)
    made = measure_arm(make_lab(), rule, setting, 0.0, 6)
    assert [temperature for _, temperature, _ in asked] == [phase.temperature for phase in PHASES]
    assert len({id(engine) for engine, *_ in asked}) == 1
    settings = asked[0][0].settings
    assert settings.adaptive is (rule == ADAPTIVE)
    assert settings.proposer == setting.method
    assert settings.max_draft_tokens == max(1, setting.draft_tokens)
    assert made.tokens_per_second == pytest.approx(3 / sum(1 / speed for speed in made.by_phase)), "six tokens each"
