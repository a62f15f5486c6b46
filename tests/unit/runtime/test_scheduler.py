"""Who is admitted, who gives way, how the rows of a pass are shared."""

from __future__ import annotations

from builder.decoding.params import SamplingParams
from builder.runtime.answer import Answer
from builder.runtime.request import Request
from builder.runtime.scheduler import Scheduler
from builder.runtime.sequence import Sequence, Status
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import SpeculationControl


def scheduler(**settings: int) -> Scheduler:
    defaults = {"max_batch_size": 3, "max_seq_len": 40, "max_num_tokens": 12, "block_size": 2, "num_blocks": 20, "max_draft_tokens": 3}
    return Scheduler(EngineSettings(**(defaults | settings)))  # type: ignore[arg-type]


def sequence(order: int, prompt: int, *, computed: int = 0, **fields: object) -> Sequence:
    request = Request(str(order), (1,) * prompt, SamplingParams(max_tokens=fields.pop("max_tokens", 30)), **fields)  # type: ignore[arg-type]
    answer = Answer(request, frozenset(), context=40)
    return Sequence(request, print, order, 0, list(request.prompt_ids), answer, num_computed=computed)


def added(one: Scheduler, *sequences: Sequence) -> list[Sequence]:
    for each in sequences:
        one.add(each)
    one.admit()
    return list(sequences)


def test_admission_asks_for_the_whole_prompt_and_one_round() -> None:
    one = scheduler(num_blocks=10)
    a, b = added(one, sequence(0, 10), sequence(1, 7))  # 5 blocks, then 4 and with a round of 1+3 tokens 6
    assert (a.status, b.status) == (Status.RUNNING, Status.WAITING)
    assert one.blocks.num_used == 5
    one.remove(a)
    one.admit()
    assert b.status is Status.RUNNING


def test_a_prompt_that_leaves_no_room_for_drafts_is_still_admitted_alone() -> None:
    one = scheduler(num_blocks=5)
    (a,) = added(one, sequence(0, 9))
    assert a.status is Status.RUNNING


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    one = scheduler(num_blocks=10)
    _, b, c = added(one, sequence(0, 10), sequence(1, 12), sequence(2, 1))
    assert (b.status, c.status) == (Status.WAITING, Status.WAITING)


def test_the_youngest_gives_way_and_returns_to_the_head_of_the_queue() -> None:
    one = scheduler(num_blocks=10, max_draft_tokens=0, max_batch_size=3)
    a, b, c = added(one, sequence(0, 6), sequence(1, 6), sequence(2, 6))
    waiting = sequence(3, 1)
    one.add(waiting)
    for each in (a, b, c):
        each.num_computed = 6
        each.token_ids += [1]
    one.make_room()  # each wants a fourth block, one is free: c's three serve b
    assert [each.status for each in (a, b, c)] == [Status.RUNNING, Status.RUNNING, Status.WAITING]
    assert list(one.waiting) == [c, waiting]
    assert (c.num_computed, c.blocks, c.token_ids) == (0, [], [1] * 7)
    assert one.preemptions == 1
    assert one.blocks.num_used == 8


def test_drafts_take_what_rows_are_left_and_every_running_sequence_keeps_one() -> None:
    one = scheduler(max_num_tokens=6, num_blocks=40)
    added(one, *(sequence(order, 2, computed=1) for order in range(3)))
    assert [limit for _, limit in one.draft_limits()] == [3, 0, 0]


def test_drafts_leave_half_of_the_rows_to_prompts() -> None:
    one = scheduler(max_num_tokens=12, num_blocks=60, max_draft_tokens=8)
    added(one, sequence(0, 2, computed=1), sequence(1, 30))
    (limit,) = [limit for _, limit in one.draft_limits()]
    assert limit == 5
    assert [count for _, count in one.prefill_chunks(1 + limit)] == [6]
    assert [count for _, count in one.prefill_chunks(1)] == [11]  # what the proposer did not use


def test_the_oldest_prompt_takes_what_the_others_can_spare() -> None:
    one = scheduler(num_blocks=60)
    added(one, sequence(0, 30), sequence(1, 5), sequence(2, 5))
    assert [count for _, count in one.prefill_chunks(0)] == [10, 1, 1]


def test_a_draft_is_never_longer_than_the_answer_the_context_or_the_cache_allow() -> None:
    def limits(one: Scheduler, each: Sequence) -> int:
        added(one, each)
        return one.draft_limits()[0][1]

    assert limits(scheduler(), sequence(0, 4, computed=3)) == 3
    assert limits(scheduler(), sequence(0, 4, computed=3, max_tokens=2)) == 1  # the round's last token comes from the target
    assert limits(scheduler(), sequence(0, 4, computed=3, max_tokens=1)) == 0
    assert limits(scheduler(), sequence(0, 38, computed=37)) == 1
    assert limits(scheduler(num_blocks=3), sequence(0, 4, computed=3)) == 1
    assert limits(scheduler(), sequence(0, 4, computed=3, speculation=False)) == 0


def test_a_short_cache_shortens_drafts_and_preempts_nobody() -> None:
    one = scheduler(num_blocks=7, max_draft_tokens=3)
    a, b = added(one, sequence(0, 4, computed=3), sequence(1, 3, computed=2))
    one.settings = EngineSettings(max_batch_size=3, max_num_tokens=60, max_draft_tokens=9)
    one.control = SpeculationControl(one.settings, own_draft_cache=False)
    one.make_room()
    assert [limit for _, limit in one.draft_limits()] == [6, 1]
    assert one.preemptions == 0
    assert (a.status, b.status) == (Status.RUNNING, Status.RUNNING)
    for each in (a, b):
        one.trim(each)
    assert one.blocks.num_used == 4
