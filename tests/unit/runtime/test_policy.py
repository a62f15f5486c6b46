"""In which order requests are served: by arrival, by urgency, by what each tenant was served; and that nobody starves."""

from __future__ import annotations

from collections import Counter
from itertools import count, cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.decoding.params import SamplingParams
from builder.runtime import policy
from builder.runtime.answer import Answer
from builder.runtime.policy import OUTPUT_WEIGHT, SECONDS_PER_PRIORITY, Fair
from builder.runtime.request import Request
from builder.runtime.scheduler import Scheduler
from builder.runtime.sequence import Sequence, Status
from builder.runtime.settings import EngineSettings, TenantLimits

TENANTS = {"a": TenantLimits(), "b": TenantLimits(priority=2), "c": TenantLimits(share=3)}


def sequence(order: int, tenant: str = "a", *, prompt: int = 1, answer: int = 4, priority: int = 0, arrival: float = 0.0) -> Sequence:
    request = Request(str(order), (1,) * prompt, SamplingParams(max_tokens=answer), tenant=tenant, priority=priority, arrival=arrival)
    return Sequence(request, print, order, 0, list(request.prompt_ids), Answer(request, frozenset(), context=64))


def scheduler(name: str, **fields: int) -> Scheduler:
    limits = {"max_batch_size": 2, "max_seq_len": 64, "max_num_tokens": 64, "block_size": 2, "num_blocks": 40, "max_draft_tokens": 0}
    return Scheduler(EngineSettings(policy=name, tenants=TENANTS, prefix_caching=False, **(limits | fields)))  # type: ignore[arg-type]


def step(one: Scheduler) -> list[Sequence]:
    """One pass of an engine that gives every running sequence a token; those that ended."""
    one.admit()
    one.make_room()
    ended = []
    for each in list(one.running):
        each.num_computed = len(each.token_ids)
        each.answer.tally.target_passes += 1
        one.policy.gave(each, each.answer.take(each.token_ids, [1]))
        if each.answer.finish_reason is not None:
            one.remove(each)
            ended.append(each)
    return ended


def served(one: Scheduler, *sequences: Sequence) -> list[int]:
    """Orders of arrival in the order in which the sequences ended."""
    for each in sequences:
        one.add(each)
    ended: list[int] = []
    while one.waiting or one.running:
        ended += [each.order for each in step(one)]
    return ended


def test_first_come_first_served_asks_for_no_priority() -> None:
    assert served(scheduler("fcfs", max_batch_size=1), sequence(0, priority=9), sequence(1), sequence(2)) == [0, 1, 2]


def test_the_most_urgent_is_admitted_first() -> None:
    one = scheduler("priority", max_batch_size=1)
    assert served(one, sequence(0, priority=3), sequence(1, priority=1), sequence(2, priority=2)) == [1, 2, 0]


def test_a_tenant_cannot_ask_for_more_urgency_than_its_limit() -> None:
    one = scheduler("priority", max_batch_size=1)
    assert served(one, sequence(0, "b", priority=0), sequence(1, "a", priority=1), sequence(2, "b", priority=3)) == [1, 0, 2]


def test_waiting_makes_up_for_priority() -> None:
    old, fresh = sequence(0, priority=1, arrival=0.0), sequence(1, priority=0, arrival=SECONDS_PER_PRIORITY + 0.1)
    assert served(scheduler("priority", max_batch_size=1), old, fresh) == [0, 1]
    young = sequence(2, priority=0, arrival=SECONDS_PER_PRIORITY - 0.1)
    assert served(scheduler("priority", max_batch_size=1), old_again := sequence(0, priority=1), young) == [2, old_again.order]


def test_the_least_urgent_gives_way_when_blocks_run_out() -> None:
    one = scheduler("priority", num_blocks=6, max_batch_size=3)
    urgent, later = sequence(0, priority=5, prompt=4, answer=20), sequence(1, priority=0, prompt=4, answer=5)
    one.add(urgent)
    step(one)
    one.add(later)
    while not one.preemptions:
        step(one)
    assert [each.order for each in one.running] == [1]
    assert urgent.status is Status.WAITING


def test_the_tenant_that_was_served_least_is_next() -> None:
    one = scheduler("fair", max_batch_size=1)
    flood = [sequence(order, "a", answer=3) for order in range(4)]
    assert served(one, *flood, sequence(4, "b", answer=3)) == [0, 4, 1, 2, 3]


def test_idle_time_is_no_credit() -> None:
    one = scheduler("fair", max_batch_size=1)
    served(one, *(sequence(order, "a", answer=20) for order in range(3)))
    assert isinstance(one.policy, Fair)
    one.add(sequence(3, "a"))
    one.add(sequence(4, "b"))  # was idle all the time
    assert one.policy.served["b"] == one.policy.served["a"] > 0


def test_a_tenant_with_three_shares_is_served_three_times_the_tokens() -> None:
    one, orders = scheduler("fair", max_batch_size=1), count()
    tokens: Counter[str] = Counter()
    for _ in range(600):
        for tenant in "ac":  # both always have somebody waiting
            if not any(each.request.tenant == tenant for each in one.waiting):
                one.add(sequence(next(orders), tenant))
        before = {id(each): len(each.token_ids) for each in one.running}
        running = [*one.running]
        ended = step(one)
        for each in {id(each): each for each in [*running, *one.running, *ended]}.values():
            tokens[each.request.tenant] += len(each.token_ids) - before.get(id(each), len(each.request.prompt_ids))
    assert tokens["c"] / tokens["a"] == pytest.approx(3, rel=0.1)


ARRIVALS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.integers(1, 12), st.integers(0, 9), st.integers(0, 3)), max_size=25
)


@given(ARRIVALS, st.sampled_from(["fcfs", "priority", "fair"]), st.integers(1, 4), st.integers(12, 30))
@settings(max_examples=150, deadline=None)
def test_every_request_ends_and_no_block_is_lost(
    arrivals: list[tuple[str, int, int, int, int]], name: str, batch: int, blocks: int
) -> None:
    """(tenant, prompt, answer, priority, steps until the next arrival), in a cache that may force preemptions."""
    one = scheduler(name, max_batch_size=batch, num_blocks=blocks, max_seq_len=24)
    ended: list[int] = []
    for order, (tenant, prompt, answer, priority, pause) in enumerate(arrivals):
        one.add(sequence(order, tenant, prompt=prompt, answer=answer, priority=priority, arrival=float(order)))
        for _ in range(pause):
            ended += [each.order for each in step(one)]
    for _ in range(sum(answer for _, _, answer, _, _ in arrivals) * 20 + 1):
        if not (one.waiting or one.running):
            break
        ended += [each.order for each in step(one)]
    assert sorted(ended) == list(range(len(arrivals)))
    assert one.blocks.num_used == 0


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_flooding_tenant_gets_no_more_than_its_neighbour_who_waits(sizes: list[tuple[int, int]], batch: int) -> None:
    """Counters of two tenants that both wait stay within what one batch of the largest requests can add (Sheng et al. 2024, bound U)."""
    one, orders = scheduler("fair", max_batch_size=batch, num_blocks=200), count()
    assert isinstance(one.policy, Fair)
    sources = {"a": cycle(sizes), "b": cycle(sizes[::-1])}
    bound = 2 * batch * (12 + OUTPUT_WEIGHT * 12)
    for _ in range(80):
        for tenant, source in sources.items():
            while sum(each.request.tenant == tenant for each in one.waiting) < (9 if tenant == "a" else batch):
                prompt, answer = next(source)
                one.add(sequence(next(orders), tenant, prompt=prompt, answer=answer))
        step(one)
        assert abs(one.policy.served["a"] - one.policy.served["b"]) <= bound


@pytest.mark.parametrize("lowest", [9])
def test_a_request_of_the_lowest_priority_is_served_under_a_stream_of_urgent_ones(lowest: int) -> None:
    def steps_until_served(seconds_per_priority: float) -> int | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(policy, "SECONDS_PER_PRIORITY", seconds_per_priority)
            one = scheduler("priority", max_batch_size=1)
            one.add(sequence(0, priority=lowest, answer=1))
            for order in range(1, 200):
                one.add(sequence(order, priority=0, answer=1, arrival=float(order)))  # one a second, all the engine can serve
                if any(each.order == 0 for each in step(one)):
                    return order
        return None

    waited = steps_until_served(SECONDS_PER_PRIORITY)
    assert waited is not None and waited <= lowest * SECONDS_PER_PRIORITY + 2
    assert steps_until_served(1e9) is None  # without ageing it starves
