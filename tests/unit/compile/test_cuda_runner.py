"""The runner for GPUs: on a GPU where there is one, and everywhere on the CPU, a double of the device, not of the runner. Graph capture and
the INT4 product are run on a GPU only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.compile.reference import forward
from builder.decoding.params import SamplingParams
from builder.decoding.stopping import BINS, StopRule
from builder.errors import EngineError
from builder.runtime.engine import Engine
from builder.runtime.request import DecodeStats, Output, Request
from builder.runtime.runner import GreedyRunner, Rows, Runner
from builder.runtime.runners.cuda.grid import SHORT, layout
from builder.runtime.runners.cuda.runner import CudaRunner, load_cuda_runner
from builder.runtime.runners.torch_aot import load_runner
from builder.runtime.settings import EngineSettings
from tests.unit.compile.conftest import BLOCK, CONTEXT, PackTiny
from tests.unit.compile.passes import rows_of, run, run_in_chunks
from tests.unit.compile.test_kernels import BLOCKS, MODELS, some_ids

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
LoadOn = Callable[[Path], CudaRunner]


@pytest.fixture(params=[CPU, pytest.param(GPU, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))], ids=str)
def device(request: pytest.FixtureRequest) -> torch.device:
    found: torch.device = request.param
    return found


@pytest.fixture
def on_device(device: torch.device) -> LoadOn:
    """on_device(folder) -> a runner with a cache."""

    def load(folder: Path) -> CudaRunner:
        runner = load_cuda_runner(folder, max_seq_len=CONTEXT, device=device)
        runner.allocate_cache(CONTEXT // BLOCK, BLOCK)
        return runner

    return load


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_float32_logits_equal_the_reference(pack_tiny: PackTiny, on_device: LoadOn, model: dict[str, Any]) -> None:
    checkpoint, folder = pack_tiny("float32", model)
    ids = some_ids()
    expected = forward(checkpoint.tensors(torch.float32), checkpoint.config, torch.tensor(ids))
    torch.testing.assert_close(run(on_device(folder), rows_of([(ids, 0, BLOCKS)])), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("weights", "options"), [("bfloat16", {}), ("int4", {"symmetric": True}), ("int4", {"symmetric": False})])
def test_logits_are_near_those_of_the_compiled_kernels(
    pack_tiny: PackTiny, on_device: LoadOn, library: Path, weights: str, options: dict[str, Any]
) -> None:
    _, folder = pack_tiny(weights, {"attention_bias": True}, **({"group_size": 32, **options} if options else {}))
    compiled = load_runner(folder, library, max_seq_len=CONTEXT, threads=2)
    compiled.allocate_cache(8, BLOCK)
    rows = rows_of([(some_ids(), 0, BLOCKS)])
    expected, ours = run(compiled, rows), run(on_device(folder), rows)
    assert (
        ours - expected
    ).norm() / expected.norm() < 0.1  # the kernels' int8 activations cost 0.05; a wrong nibble, scale or group gives 0.5 and more
    assert (ours - expected).norm() / expected.norm() < 0.1


def test_passes_of_any_shape_write_and_read_the_same_cache(pack_tiny: PackTiny, on_device: LoadOn) -> None:
    _, folder = pack_tiny("float32")
    runner, ids = on_device(folder), some_ids(60)
    whole = run(runner, rows_of([(ids, 0, BLOCKS)]))

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.integers(1, 40), min_size=2))
    def chunks_agree(sizes: list[int]) -> None:
        cut = [size for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True) if end <= len(ids)]
        cut += [1] * (len(ids) - sum(cut))
        torch.testing.assert_close(run_in_chunks(runner, ids, cut, BLOCKS), whole, atol=2e-4, rtol=1e-4)

    chunks_agree()
    assert len(runner._graphs) > 1


def test_sequences_of_a_pass_short_and_long_do_not_see_each_other(pack_tiny: PackTiny, on_device: LoadOn) -> None:
    _, folder = pack_tiny("float32")
    runner = on_device(folder)
    parts = [(some_ids(30), [3, 1]), (some_ids(40)[20:23], [0, 7]), (some_ids(25)[5:], [2, 4]), (some_ids(9)[8:], [5])]
    alone = [run(runner, rows_of([(ids, 0, blocks)])) for ids, blocks in parts]
    together = run(runner, rows_of([(ids, 0, blocks) for ids, blocks in parts]))
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-4, rtol=1e-4)


def test_what_a_rejected_draft_left_behind_changes_nothing(pack_tiny: PackTiny, on_device: LoadOn) -> None:
    _, folder = pack_tiny("float32")
    runner, ids = on_device(folder), some_ids(12)
    clean = run_in_chunks(runner, ids, [8, 4], BLOCKS)
    run(runner, rows_of([(some_ids(30)[10:], 8, BLOCKS)]))  # a longer, wrong continuation
    torch.testing.assert_close(run(runner, rows_of([(ids[8:], 8, BLOCKS)])), clean[8:], atol=1e-5, rtol=1e-5)


def test_places_that_no_row_takes_write_to_no_block_of_a_sequence(pack_tiny: PackTiny, on_device: LoadOn) -> None:
    _, folder = pack_tiny("float32")
    runner = on_device(folder)
    run(runner, rows_of([(some_ids(3), 0, [2]), (some_ids(4)[3:], 0, [5]), (some_ids(5)[4:], 0, [6])]))  # a grid of 4 x 4
    assert runner._cache is not None
    written = runner._cache._key[0].flatten(2).any(-1).nonzero().tolist()
    assert [place for place in written if place[0] != runner._cache.scratch] == [[2, 0], [2, 1], [2, 2], [5, 0], [6, 0]]


@pytest.mark.parametrize("rule", [None, StopRule(tuple((place + 1) / BINS for place in range(BINS)), 0.3)], ids=["whole", "early stop"])
def test_a_draft_in_one_call_is_that_of_the_compiled_kernels(
    pack_tiny: PackTiny, on_device: LoadOn, library: Path, rule: StopRule | None
) -> None:
    _, folder = pack_tiny("float32", {"vocab_size": 330})
    compiled = load_runner(folder, library, max_seq_len=CONTEXT, threads=2)
    compiled.allocate_cache(8, BLOCK)
    rows = rows_of([([39 * start], 0, [start]) for start in range(8)])
    lengths = torch.tensor([6, 0, 3, 6, 6, 1, 6, 5], dtype=torch.int32)
    expected, ours = compiled.continue_greedily(rows, lengths, rule), on_device(folder).continue_greedily(rows, lengths, rule)
    assert ours[0].tolist() == expected[0].tolist()
    if rule is not None:
        drafted = expected[0] >= 0
        torch.testing.assert_close(ours[1][drafted], expected[1][drafted], atol=1e-4, rtol=1e-3)


def decoded(target: Runner, draft: Runner, prompts: list[tuple[int, ...]], sampling: SamplingParams, **options: Any) -> list[Output]:
    loop = EngineSettings(max_seq_len=CONTEXT, num_blocks=32, max_draft_tokens=3, adaptive=False, **options)
    engine = Engine(target, draft, loop, eos_token_ids=frozenset())
    outputs: list[Output] = []
    for i, prompt in enumerate(prompts):
        engine.submit(Request(str(i), prompt, replace(sampling, seed=i)), outputs.append)
    while engine.step():
        pass
    return sorted(outputs, key=lambda output: output.request_id)


def answers(outputs: list[Output]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for output in outputs:
        found.setdefault(output.request_id, []).extend(output.token_ids)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_decode_loop_gives_the_compiled_engines_answers(
    pack_tiny: PackTiny, library: Path, device: torch.device, temperature: float
) -> None:
    _, target_folder = pack_tiny("float32")
    _, draft_folder = pack_tiny("float32", layers=1, embedding=False)
    prompts = [tuple(range(3 + 5 * i, 12 + 9 * i)) for i in range(4)]
    sampling = SamplingParams(max_tokens=24, temperature=temperature)

    def both(load: Callable[[Path], Any]) -> tuple[Any, Any]:
        target, draft = load(target_folder), load(draft_folder)
        target.allocate_cache(32, BLOCK)
        draft.share_cache(target)
        draft.share_embedding(target.embedding)
        return target, draft

    compiled = both(lambda folder: load_runner(folder, library, max_seq_len=CONTEXT, threads=2))
    on_device = both(lambda folder: load_cuda_runner(folder, max_seq_len=CONTEXT, device=device))
    expected = decoded(*compiled, prompts, sampling, proposer="draft_model", shared_kv=True)
    ours = decoded(*on_device, prompts, sampling, proposer="draft_model", shared_kv=True)
    assert answers(ours) == answers(expected)
    assert [accepted(output.stats) for output in ours] == [accepted(output.stats) for output in expected]
    assert any(accepted(output.stats) for output in ours)


def accepted(stats: DecodeStats | None) -> int | None:
    return stats.num_accepted_draft_tokens if stats is not None else None


def test_it_is_a_greedy_runner_and_says_what_is_missing(pack_tiny: PackTiny, on_device: LoadOn) -> None:
    _, folder = pack_tiny("bfloat16", layers=1, embedding=False)
    runner = on_device(folder)
    assert isinstance(runner, GreedyRunner)
    with pytest.raises(EngineError, match="no embedding"):
        runner.embed(rows_of([([1], 0, [0])]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_error_says_how_to_get_one(pack_tiny: PackTiny) -> None:
    with pytest.raises(EngineError, match="sees no CUDA GPU") as raised:
        load_cuda_runner(pack_tiny("bfloat16")[1], max_seq_len=CONTEXT)
    assert raised.value.where == "engine.device" and "CUDA build of torch" in (raised.value.mend or "")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=12))
def test_every_row_has_one_place_and_every_other_place_none(parts: list[tuple[int, int]]) -> None:
    rows: Rows = rows_of([(range(count), start, range(8 * place, 8 * place + 8)) for place, (count, start) in enumerate(parts)])
    found = layout(rows, BLOCK, scratch=999)
    positions = np.concatenate([grid.positions.ravel() for grid in found.grids])
    assert len(set(found.back.tolist())) == len(found.back) == (positions >= 0).sum()
    assert (found.lay[found.back] == np.arange(len(found.back))).all()
    assert (positions[found.back] == rows.positions.numpy()).all()
    for grid in found.grids:
        for line, blocks in zip(grid.positions, grid.blocks, strict=True):
            needed = line.max() // BLOCK + 1
            assert (blocks[:needed] < 999).all() and (line.max() < 0 or len(set(blocks[:needed].tolist())) == needed)
    if found.short:
        assert all(size & (size - 1) == 0 for grid in found.grids for size in (*grid.positions.shape, grid.blocks.shape[1]))
    assert found.short == all(count <= SHORT for count, _ in parts)
