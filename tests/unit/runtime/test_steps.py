"""What the loop tells of its steps, and that it puts nothing into words for nobody."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from builder.decoding.params import SamplingParams
from builder.runtime.steps import Step
from tests.unit.runtime.harness import Bench


class Recorder:
    def __init__(self, active: bool = True) -> None:
        self.active = active
        self.steps: list[Step] = []

    def step_done(self, step: Step) -> None:
        self.steps.append(step)


def test_the_steps_of_a_request_add_up_to_what_its_output_says() -> None:
    bench, recorder = Bench(max_draft_tokens=3, adaptive=False), Recorder()
    bench.engine.observe_steps(recorder)
    bench.submit("a", range(1, 9), SamplingParams(max_tokens=20))
    bench.submit("b", range(2, 9), SamplingParams(max_tokens=10), speculation=False)
    bench.run()
    for name, prompt in (("a", 8), ("b", 7)):
        stats: Any = bench.outputs[name][-1].stats
        rounds = [r for step in recorder.steps for r in step.rounds if r.request_id == name]
        assert sum(p.tokens for step in recorder.steps for p in step.prefills if p.request_id == name) == prompt
        assert sum(r.drafted for r in rounds) == stats.num_draft_tokens
        assert sum(r.accepted for r in rounds) == stats.num_accepted_draft_tokens
        assert all(r.accepted <= r.drafted <= r.limit <= 3 for r in rounds)
    assert any(r.drafted for step in recorder.steps for r in step.rounds if r.request_id == "a")
    assert all(step.began <= step.drafted <= step.ended for step in recorder.steps)
    assert all(earlier.ended <= later.began for earlier, later in itertools.pairwise(recorder.steps))


@pytest.mark.parametrize("observer", [None, Recorder(active=False)])
def test_no_step_is_put_together_for_nobody(observer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.runtime.engine.step_of", lambda *_, **__: pytest.fail("a step was put together"))
    bench = Bench()
    if observer is not None:
        bench.engine.observe_steps(observer)
    bench.submit("a", range(1, 9))
    bench.run()
    assert bench.outputs["a"][-1].error is None
    assert observer is None or observer.steps == []
