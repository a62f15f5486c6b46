"""engine.threads, affinity and numa on machines of any shape."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import EngineError
from builder.plan.machine import threads_placed
from builder.plan.placement import Placement, memory_nodes, placed
from builder.spec.engine import Engine

ONE = {0: frozenset(range(4))}
TWO = {0: frozenset({0, 1}), 1: frozenset({2, 3, 4})}


def of(allowed: set[int], nodes: dict[int, frozenset[int]], **engine: object) -> Placement:
    return placed(Engine.model_validate(engine), frozenset(allowed), nodes)


def test_unless_asked_nothing_is_tied() -> None:
    assert of({0, 1, 2, 3}, ONE) == Placement(4)
    assert of({0, 1, 2, 3, 4}, TWO, threads=3) == Placement(3)


def test_affinity_ties_one_thread_to_each_core() -> None:
    assert of({1, 3}, ONE, affinity="auto") == Placement(2, (1, 3))
    assert of({0, 1, 2, 3}, ONE, affinity=[3, 1]) == Placement(2, (3, 1))
    assert of({0, 1, 2, 3}, ONE, affinity=[3, 1], threads=1) == Placement(1, (3, 1))


def test_a_node_gives_its_cores_and_its_memory() -> None:
    assert of({0, 1, 2, 3, 4}, TWO, numa="auto") == Placement(3, (2, 3, 4), (2, 3, 4))
    assert of({0, 1, 2}, TWO, numa="auto", affinity="auto") == Placement(2, (0, 1), (0, 1))
    assert of({0, 1, 2, 3, 4}, TWO, numa=0) == Placement(2, (0, 1), (0, 1))


@pytest.mark.parametrize("numa", ["auto", 0])
def test_on_a_machine_of_one_node_numa_changes_nothing_and_doctor_says_so(numa: object) -> None:
    assert of({0, 1}, ONE, numa=numa) == Placement(2)
    told = threads_placed(Engine.model_validate({"numa": numa}), ONE)
    assert told.ok and f"engine.numa {numa} changes nothing" in told.message


@pytest.mark.parametrize("engine", [{"affinity": [9]}, {"numa": 3}, {"numa": 0, "affinity": [2]}])
def test_a_core_or_node_that_is_not_there_is_refused_by_name(engine: dict[str, object]) -> None:
    with pytest.raises(EngineError, match=r"core 9|is 3|core 2"):
        of({0, 1, 2, 3, 4}, TWO, **engine)
    assert threads_placed(Engine.model_validate({"affinity": [8191]})).ok is False


@given(st.sets(st.integers(0, 7), min_size=1), st.sampled_from(["none", "auto"]), st.sampled_from(["none", "auto"]))
def test_threads_run_only_where_the_process_may(allowed: set[int], affinity: str, numa: str) -> None:
    placement = of(allowed, TWO, affinity=affinity, numa=numa)
    assert 1 <= placement.count <= len(allowed)
    assert set(placement.cpus) | set(placement.node_cores) <= allowed


def test_nodes_are_read_from_the_kernels_lists(tmp_path: Path) -> None:
    for number, cores in ((0, "0-2,6\n"), (1, "3\n"), (2, "\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    assert memory_nodes(tmp_path) == {0: frozenset({0, 1, 2, 6}), 1: frozenset({3}), 2: frozenset()}
    assert memory_nodes(tmp_path / "missing") == {}


def test_weights_are_placed_on_the_node_and_the_thread_is_free_again() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with Placement(1, (core,), (core,)).memory():
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
