"""What is refused, with which limit and when to come again; deadlines; broken engines; several answers to one prompt."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding.params import SamplingParams
from builder.decoding.random import sample_seed
from builder.errors import EngineError, OverloadError, RequestError
from builder.runtime.drain import UNKNOWN, Drain
from builder.runtime.engine import FAILURES_IN_A_ROW
from builder.runtime.limits import MINUTE, Limits
from builder.runtime.request import Cancellation, FinishReason
from builder.runtime.settings import TenantLimits
from tests.unit.runtime.harness import Bench, plain_greedy

torch.set_num_threads(1)
TWELVE = SamplingParams(max_tokens=12)
SAMPLED = SamplingParams(max_tokens=6, temperature=1.0, seed=9, n=3)


def refusal(limits: Limits, tenant: str, now: float, answers: int = 1) -> OverloadError:
    with pytest.raises(OverloadError) as caught:
        limits.check(tenant, answers, now)
    return caught.value


def test_places_become_free_at_the_recent_rate() -> None:
    drain = Drain()
    assert drain.seconds(2, 100.0) == 2 * UNKNOWN
    for at in (100.0, 102.0, 104.0):
        drain.ended(at)
    assert drain.seconds(3, 104.0) == 6.0
    assert drain.seconds(1, 114.0) == 7.0  # nothing has ended since: a stall


def test_a_tenants_concurrency_is_freed_by_every_end() -> None:
    limits = Limits({"a": TenantLimits(max_concurrent=2)})
    limits.accepted("a", 2, 0.0)
    text = str(refusal(limits, "a", 1.0))
    assert text.startswith("serving.tenants.a.max_concurrent: tenant a has 2 answers running or waiting, and 2 is its limit.")
    limits.check("b", 9, 1.0)
    limits.ended("a", 1.0)
    limits.check("a", 1, 1.0)
    assert refusal(limits, "a", 1.0, answers=2).limit == "tenant_concurrency"


@given(st.lists(st.integers(0, 200).map(float), min_size=1, max_size=60).map(sorted), st.integers(1, 8))
def test_no_minute_has_more_requests_than_the_rate_and_the_hint_is_true(arrivals: list[float], rate: int) -> None:
    limits = Limits({"a": TenantLimits(requests_per_minute=rate)})
    accepted: list[float] = []
    for now in arrivals:
        try:
            limits.check("a", 1, now)
        except OverloadError as error:
            assert error.limit == "tenant_rate"
            assert 1 <= error.retry_after <= MINUTE
            assert sum(at > now + error.retry_after - MINUTE for at in accepted) < rate  # then there is room
        else:
            limits.accepted("a", 1, now)
            accepted.append(now)
    for at in accepted:
        assert sum(at - MINUTE < other <= at for other in accepted) <= rate


def test_a_full_queue_takes_all_answers_of_a_request_or_none() -> None:
    bench = Bench(proposer="none", max_batch_size=4, max_waiting=1)
    bench.submit("first", (1,), SamplingParams(max_tokens=3, temperature=1.0, n=3))
    with pytest.raises(OverloadError, match=r"serving.max_waiting: 3 answers are waiting already. Try again in 1 s"):
        bench.submit("second", (1,), SamplingParams(max_tokens=3, temperature=1.0, n=3))
    assert len(bench.scheduler.waiting) == 3
    bench.submit("third", (1,), SamplingParams(max_tokens=3, temperature=1.0, n=2))
    bench.run(audit=True)


def test_what_a_tenant_was_refused_does_not_count_against_it() -> None:
    bench = Bench(proposer="none", max_batch_size=1, max_waiting=0, tenants={"a": TenantLimits(requests_per_minute=2)})
    bench.submit("0", (1,), TWELVE, tenant="a")
    for _ in range(3):
        with pytest.raises(OverloadError, match="max_waiting"):
            bench.submit("1", (1,), TWELVE, tenant="a")
    bench.run()
    bench.submit("1", (1,), TWELVE, tenant="a")
    bench.run()
    with pytest.raises(OverloadError, match="requests_per_minute"):
        bench.submit("2", (1,), TWELVE, tenant="a")


def test_a_deadline_ends_running_and_waiting_requests_and_frees_their_blocks() -> None:
    bench = Bench(proposer="none", max_batch_size=1)
    bench.submit("running", (1, 2), TWELVE, timeout=100.0)
    bench.submit("waiting", (3, 4), TWELVE, timeout=100.0)
    bench.submit("patient", (5, 6), TWELVE)
    bench.engine.step()
    bench.engine._endings._deadlines = [(time.monotonic(), request_id) for _, request_id in bench.engine._endings._deadlines]
    bench.run(audit=True)
    for name in ("running", "waiting"):
        assert (bench.last(name).finish_reason, bench.last(name).cancellation) == (FinishReason.TIMEOUT, Cancellation.DEADLINE)
    assert bench.tokens("running") == plain_greedy((1, 2), 1)
    assert bench.tokens("patient") == plain_greedy((5, 6), 12)
    assert bench.scheduler.blocks.num_used == 0


def test_a_request_that_ended_in_time_is_not_touched_by_its_deadline() -> None:
    bench = Bench(proposer="none")
    bench.submit("a", (1, 2), TWELVE, timeout=0.001)
    bench.engine._endings._deadlines = [(time.monotonic() + 100, "a")]
    bench.run()
    bench.submit("a", (3, 4), TWELVE)  # the id again, without a deadline
    bench.engine._endings._deadlines = [(time.monotonic() + 100, "nobody")]
    bench.run()
    assert bench.last("a").finish_reason is FinishReason.LENGTH


def test_an_engine_that_fails_again_and_again_is_broken_and_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(proposer="none", max_batch_size=1)
    monkeypatch.setattr(bench.target, "head", lambda hidden: 1 / 0)
    for name in range(FAILURES_IN_A_ROW + 1):
        bench.submit(str(name), (1, 2), TWELVE)
    for step in range(FAILURES_IN_A_ROW):
        assert bench.engine.broken is False, step
        bench.engine.step()
    assert bench.engine.broken
    assert not bench.engine.step()  # those who waited have their error, too
    assert [bench.last(str(name)).finish_reason for name in range(FAILURES_IN_A_ROW + 1)] == [FinishReason.ERROR] * (FAILURES_IN_A_ROW + 1)
    with pytest.raises(OverloadError, match="is being restarted") as caught:
        bench.submit("late", (1, 2), TWELVE)
    assert caught.value.limit == "restart"


def test_failures_with_answers_between_them_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(proposer="none")
    for number in range(2 * FAILURES_IN_A_ROW):
        bench.submit(f"bad {number}", (1, 2), TWELVE)
        with monkeypatch.context() as patch:
            patch.setattr(bench.target, "head", lambda hidden: 1 / 0)
            bench.engine.step()
        bench.submit(f"good {number}", (1, 2), TWELVE)
        bench.run(audit=True)
        assert bench.tokens(f"good {number}") == plain_greedy((1, 2), 12)
    assert not bench.engine.broken


def test_a_loop_that_cannot_even_settle_a_failure_is_broken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(proposer="none")
    monkeypatch.setattr(bench.target, "head", lambda hidden: 1 / 0)
    monkeypatch.setattr(bench.engine, "_fail", lambda error: 1 / 0)
    bench.engine.start()
    bench.submit("a", (1, 2), TWELVE)
    thread = bench.engine._thread
    assert thread is not None
    thread.join(timeout=20)
    assert bench.engine.broken
    bench.engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        bench.submit("b", (1, 2), TWELVE)


@pytest.mark.parametrize("proposer", ["none", "draft_model"])
@pytest.mark.parametrize("shared_kv", [True, False])
def test_answers_to_one_prompt_run_it_once_and_are_those_of_their_seeds(proposer: str, shared_kv: bool) -> None:
    prompt = tuple(range(1, 11)) * 2 + (3,)  # five full blocks of four tokens and one token
    bench = Bench(proposer=proposer, shared_kv=shared_kv)
    bench.submit("several", prompt, SAMPLED)
    bench.run(audit=True)
    outputs = bench.outputs["several"]
    rows = sum(bench.target.passes)
    alone = Bench(proposer="none", prefix_caching=False)
    for index in range(3):
        seed = sample_seed(9, index)
        alone.submit(str(index), prompt, SamplingParams(max_tokens=6, temperature=1.0, seed=seed))
        alone.run()
        mine = [token for output in outputs if output.index == index for token in output.token_ids]
        if proposer == "none":  # speculation keeps the distribution, not the draw
            assert mine == alone.tokens(str(index))
        assert len(mine) == 6
    assert rows < 2 * len(prompt) + 3 * 6 * 5, "the prompt was run for each answer"
    usages = [output.usage for output in outputs if output.usage]
    assert sorted(usage.prompt_tokens for usage in usages) == [0, 0, len(prompt)]
    assert sum(usage.completion_tokens for usage in usages) == 18
    assert bench.scheduler.blocks.num_used == 0


def test_cancelling_a_request_ends_all_its_answers() -> None:
    bench = Bench(proposer="none", max_batch_size=3)
    bench.submit("several", (1, 2, 3), SAMPLED)
    bench.engine.step()
    assert bench.engine.cancel("several", Cancellation.CLIENT)
    assert not bench.engine.step()
    assert sorted(output.index for output in bench.outputs["several"] if output.finish_reason is FinishReason.CANCELLED) == [0, 1, 2]
    assert bench.scheduler.blocks.num_used == 0


def test_answers_whose_first_has_ended_early_still_run() -> None:
    bench = Bench(proposer="none", max_batch_size=3)
    bench.submit("several", (1, 2, 3, 4, 5), SamplingParams(max_tokens=1, temperature=1.0, seed=1, n=3))
    bench.run(audit=True)
    assert sorted(output.index for output in bench.outputs["several"]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (SamplingParams(n=2), "n answers at temperature 0 would all be the same"),
        (SamplingParams(n=0, temperature=1.0), "n is 0"),
        (SamplingParams(n=7, temperature=1.0), "n is 7, it must be 1 to 6"),
    ],
)
def test_a_number_of_answers_that_cannot_be_is_refused(sampling: SamplingParams, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Bench(max_batch_size=6).submit("a", (1, 2), sampling)
