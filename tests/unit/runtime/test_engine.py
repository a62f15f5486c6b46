"""The life of an engine: queueing, cancelling, failing, stopping; and what it tells its observer."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from builder.decoding.params import SamplingParams
from builder.errors import EngineError, RequestError
from builder.runtime.engine import Engine
from builder.runtime.request import Cancellation, FinishReason, Output, Request
from builder.runtime.settings import EngineSettings
from tests.unit.runtime.harness import Bench, Letters, plain_greedy
from tests.unit.toy_runner import toy_pair

torch.set_num_threads(1)
TWELVE = SamplingParams(max_tokens=12)


class Notes:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def round_done(self, drafted: int, accepted: int) -> None:
        self.heard.append(("round", drafted, accepted))

    def tokens_emitted(self, request: Request, count: int, seconds_since_last: float | None) -> None:
        self.heard.append(("tokens", request.id, count, seconds_since_last is None))

    def first_token(self, request: Request, seconds: float) -> None:
        self.heard.append(("first", request.id, seconds >= 0))

    def finished(self, request: Request, output: Output, seconds: float) -> None:
        self.heard.append(("finished", request.id, output.finish_reason))

    def pass_done(self, running: int, waiting: int, blocks_used: int, blocks_cached: int, blocks_total: int) -> None:
        self.heard.append(("pass", running, waiting, blocks_used, blocks_cached, blocks_total))

    def of(self, kind: str) -> list[tuple[object, ...]]:
        return [note for note in self.heard if note[0] == kind]


def test_the_end_of_sequence_token_ends_an_answer_inside_a_round() -> None:
    expected = plain_greedy((1, 2, 3), 12)
    eos = next(token for token in expected if token != expected[0])
    end = expected.index(eos) + 1
    bench = Bench(proposer="draft_model", noise=0.0, max_draft_tokens=5, eos=frozenset({eos}))
    bench.submit("a", (1, 2, 3), TWELVE)
    bench.submit("b", (1, 2, 3), SamplingParams(max_tokens=12, ignore_eos=True))
    bench.run(audit=True)
    assert bench.tokens("a") == expected[:end]
    assert bench.last("a").finish_reason is FinishReason.STOP
    assert bench.tokens("b") == expected
    assert bench.scheduler.blocks.num_used == 0


@pytest.mark.parametrize("proposer", ["none", "draft_model"])
def test_a_stop_string_across_tokens_ends_an_answer(proposer: str) -> None:
    expected = plain_greedy((1, 2, 3), 12)
    letters = "".join("abcdefghijk"[token] for token in expected)
    stop = letters[4:7]
    end = letters.index(stop) + 3
    bench = Bench(proposer=proposer, max_draft_tokens=5, tokenizer=Letters())
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=12, stop=(stop, "zz")))
    bench.run(audit=True)
    assert bench.last("a").finish_reason is FinishReason.STOP
    assert bench.tokens("a") == expected[:end]
    kept = len(bench.tokens("a")) - len(bench.last("a").token_ids) + bench.last("a").text_limit
    assert kept == end - 3  # one letter a token: what stays is the text before the stop string
    assert bench.scheduler.blocks.num_used == 0


def test_a_full_context_ends_an_answer() -> None:
    bench = Bench(proposer="draft_model", max_seq_len=10)
    bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=50))
    bench.submit("b", (1,) * 9, SamplingParams(max_tokens=50))
    bench.run(audit=True)
    assert bench.tokens("a") == plain_greedy((1, 2, 3), 7)
    assert bench.tokens("b") == plain_greedy((1,) * 9, 1)
    assert bench.last("a").finish_reason is FinishReason.LENGTH


def test_usage_and_stats_come_with_the_last_output_only() -> None:
    bench = Bench(proposer="draft_model", max_draft_tokens=3)
    bench.submit("a", (1, 2, 3), TWELVE)
    bench.run()
    assert all(output.usage is None and output.stats is None for output in bench.outputs["a"][:-1])
    usage, stats = bench.last("a").usage, bench.last("a").stats
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (3, 12)
    assert stats is not None and stats.optimisation == "speculative"
    assert stats.target_passes == len(bench.target.passes)
    assert stats.num_spec_steps == sum(stats.acceptance_histogram)
    assert 1.0 < stats.mean_acceptance_length <= 4.0


def test_a_request_can_decline_speculation() -> None:
    bench = Bench(proposer="draft_model")
    bench.submit("a", (1, 2, 3), TWELVE, speculation=False)
    bench.run()
    assert bench.last("a").stats.optimisation == "plain"  # type: ignore[union-attr]
    assert bench.draft.passes == []


def test_a_cancelled_request_ends_at_the_next_step_running_or_waiting() -> None:
    bench = Bench(proposer="none", max_batch_size=1)
    bench.submit("running", (1, 2), TWELVE)
    bench.submit("waiting", (3, 4), TWELVE)
    bench.engine.step()
    assert bench.engine.cancel("running", Cancellation.CLIENT)
    assert bench.engine.cancel("waiting", Cancellation.DISCONNECTED)
    assert not bench.engine.cancel("nobody", Cancellation.CLIENT)
    bench.engine.step()
    assert [bench.last(name).finish_reason for name in ("running", "waiting")] == [FinishReason.CANCELLED] * 2
    assert bench.last("running").cancellation is Cancellation.CLIENT
    assert bench.last("running").usage.completion_tokens == 1  # type: ignore[union-attr]
    assert not bench.engine.cancel("running", Cancellation.CLIENT)
    assert not bench.engine.step()
    assert bench.scheduler.blocks.num_used == 0


def test_a_full_queue_says_how_many_wait() -> None:
    bench = Bench(proposer="none", max_batch_size=2, max_waiting=3)
    for place in range(5):  # two places in the batch and three in the queue
        bench.submit(str(place), (1,), TWELVE)
    bench.engine.step()
    with pytest.raises(RequestError, match="3 answers are waiting"):
        bench.submit("6", (1,), TWELVE)
    bench.run()
    bench.submit("6", (1,), TWELVE)
    bench.run()
    assert bench.tokens("6") == plain_greedy((1,), 12)


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    bench = Bench(proposer="none")
    bench.submit("a", (1,), TWELVE)
    with pytest.raises(RequestError, match="'a' is being served"):
        bench.submit("a", (1,), TWELVE)
    bench.run()
    bench.submit("a", (1,), TWELVE)


def test_bad_values_are_refused_at_submit() -> None:
    bench = Bench(proposer="none")
    with pytest.raises(RequestError, match="temperature is -1"):
        bench.submit("a", (1,), SamplingParams(temperature=-1))
    assert not bench.engine.step()


def test_requests_are_served_in_the_order_they_came() -> None:
    notes = Notes()
    bench = Bench(proposer="none", max_batch_size=2, num_blocks=8, block_size=4, observer=notes)
    bench.submit("long", (1,) * 20, SamplingParams(max_tokens=3))
    bench.submit("longer", (2,) * 25, SamplingParams(max_tokens=3))
    bench.submit("short", (3,), SamplingParams(max_tokens=3))  # would fit beside `long`, but must not overtake
    bench.run()
    assert [note[1] for note in notes.of("first")] == ["long", "longer", "short"]


def test_a_failing_step_fails_the_running_requests_and_the_engine_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(proposer="draft_model", max_batch_size=2)
    for name in "abc":
        bench.submit(name, (1, 2), TWELVE)
    bench.engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(bench.target, "head", lambda hidden: 1 / 0)
        assert bench.engine.step()
    bench.run(audit=True)
    for name in "ab":
        assert bench.last(name).finish_reason is FinishReason.ERROR
        assert bench.last(name).error == "ZeroDivisionError: division by zero"
    assert bench.tokens("c") == plain_greedy((1, 2), 12)
    assert bench.scheduler.blocks.num_used == 0


def test_a_failing_admission_does_not_spin() -> None:
    bench = Bench(proposer="none")
    bench.submit("a", (1,), TWELVE)
    bench.scheduler.admit = lambda: 1 / 0
    assert not bench.engine.step()
    assert bench.last("a").finish_reason is FinishReason.ERROR


def test_logits_that_are_not_finite_are_an_error_of_the_request() -> None:
    bench = Bench(proposer="none")
    bench.target.output = bench.target.output * torch.nan
    bench.submit("a", (1,), SamplingParams(temperature=1.0))
    bench.run()
    assert "not finite" in str(bench.last("a").error)


def test_a_consumer_that_raises_loses_its_own_request_only() -> None:
    bench = Bench(proposer="none")
    calls: list[Output] = []

    def broken(output: Output) -> None:
        calls.append(output)
        raise OSError("the pipe is gone")

    bench.submit("good", (1, 2), TWELVE)
    bench.engine.submit(Request("bad", (1, 2), TWELVE), broken)
    bench.run(audit=True)
    assert len(calls) == 1
    assert bench.tokens("good") == plain_greedy((1, 2), 12)
    assert bench.scheduler.blocks.num_used == 0


def test_outputs_are_delivered_outside_the_locks() -> None:
    bench = Bench(proposer="none")
    again: list[Output] = []

    def resubmit(output: Output) -> None:
        if output.finish_reason:
            worker = threading.Thread(target=bench.engine.submit, args=(Request("next", (3,), TWELVE), again.append))
            worker.start()
            worker.join(timeout=20)
            assert not worker.is_alive()

    bench.engine.submit(Request("a", (1, 2), SamplingParams(max_tokens=2)), resubmit)
    bench.run()
    assert [token for output in again for token in output.token_ids] == plain_greedy((3,), 12)


def test_the_observer_hears_every_round_token_and_end() -> None:
    notes = Notes()
    bench = Bench(proposer="draft_model", max_draft_tokens=3, observer=notes)
    bench.submit("a", (1, 2, 3), TWELVE)
    bench.run()
    stats = bench.last("a").stats
    assert stats is not None
    rounds = notes.of("round")
    assert (len(rounds), sum(r[1] for r in rounds), sum(r[2] for r in rounds)) == (  # type: ignore[misc]
        stats.num_spec_steps,
        stats.num_draft_tokens,
        stats.num_accepted_draft_tokens,
    )
    assert sum(note[2] for note in notes.of("tokens")) == 12  # type: ignore[misc]
    assert [note[3] for note in notes.of("tokens")] == [True] + [False] * (len(notes.of("tokens")) - 1)
    assert notes.of("first") == [("first", "a", True)]
    assert notes.of("finished") == [("finished", "a", FinishReason.LENGTH)]
    assert len(notes.of("pass")) == stats.target_passes
    assert notes.of("pass")[-1] == ("pass", 0, 0, 0, 3, 96)


def test_the_loop_serves_many_threads_and_stops_cleanly() -> None:
    bench = Bench(proposer="hybrid", max_batch_size=3, max_waiting=100)
    bench.engine.start()
    results: dict[int, list[int]] = {}

    def client(place: int) -> None:
        done = threading.Event()
        outputs: list[Output] = []

        def take(output: Output) -> None:
            outputs.append(output)
            if output.finish_reason:
                done.set()

        bench.engine.submit(Request(str(place), (place % 5, 1), TWELVE), take)
        assert done.wait(30)
        results[place] = [token for output in outputs for token in output.token_ids]

    clients = [threading.Thread(target=client, args=(place,)) for place in range(12)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    with pytest.raises(EngineError, match="running already"):
        bench.engine.start()
    bench.engine.stop()
    assert results == {place: plain_greedy((place % 5, 1), 12) for place in range(12)}
    assert not any(thread.name == "tandem-engine" for thread in threading.enumerate())
    with pytest.raises(EngineError, match="stopped"):
        bench.submit("late", (1,), TWELVE)


def test_stopping_cancels_what_is_left_and_starting_again_serves() -> None:
    bench = Bench(proposer="none", max_batch_size=1)
    bench.submit("a", (1, 2), TWELVE)
    bench.submit("b", (1, 2), TWELVE)
    bench.engine.step()
    bench.engine.stop()
    assert [bench.last(name).cancellation for name in "ab"] == [Cancellation.SHUTDOWN] * 2
    bench.engine.start()
    bench.submit("c", (1, 2), TWELVE)
    while bench.last("c").finish_reason is None if bench.outputs["c"] else True:
        time.sleep(0.005)
    bench.engine.stop()
    assert bench.tokens("c") == plain_greedy((1, 2), 12)


def test_an_idle_loop_makes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: (steps.append(1), step(self))[1])
    bench = Bench(proposer="none")
    bench.engine.start()
    time.sleep(0.1)
    bench.engine.stop()
    assert steps == []


@pytest.mark.parametrize(
    ("settings", "with_draft", "message"),
    [
        (EngineSettings(proposer="draft_model"), False, "needs a draft model"),
        (EngineSettings(proposer="draft_mode"), True, "Did you mean draft_model"),
        (EngineSettings(max_num_tokens=8, max_batch_size=16), True, "max_num_tokens 8 is below max_batch_size 16"),
    ],
)
def test_settings_that_do_not_fit_the_runners_are_refused(settings: EngineSettings, with_draft: bool, message: str) -> None:
    target, draft = toy_pair(shared_kv=True)
    with pytest.raises(EngineError, match=message):
        Engine(target, draft if with_draft else None, settings, eos_token_ids=frozenset())


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    target, draft = toy_pair(shared_kv=True)[0], toy_pair(shared_kv=True, vocab=7)[1]
    with pytest.raises(EngineError, match="different vocabularies"):
        Engine(target, draft, EngineSettings(), eos_token_ids=frozenset())


def test_a_proposer_without_a_draft_model_needs_no_draft() -> None:
    target, _ = toy_pair(shared_kv=True)
    target.allocate_cache(64, 4)
    engine = Engine(target, None, EngineSettings(proposer="ngram", num_blocks=64, block_size=4), eos_token_ids=frozenset())
    outputs: list[Output] = []
    engine.submit(Request("a", (1, 2, 1, 2, 1, 2), TWELVE), outputs.append)
    while engine.step():
        pass
    assert [token for output in outputs for token in output.token_ids] == plain_greedy((1, 2, 1, 2, 1, 2), 12)


def test_a_step_runs_torch_in_one_thread_and_leaves_the_callers_number_as_it_was() -> None:
    bench = Bench()
    seen: list[int] = []
    layers = bench.target.layers
    bench.target.layers = lambda *arguments: (seen.append(torch.get_num_threads()), layers(*arguments))[1]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        bench.submit("a", (1, 2, 3), SamplingParams(max_tokens=3))
        bench.run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
