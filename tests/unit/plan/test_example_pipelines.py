"""The shipped pipelines for GPUs pass the plan on a machine with neither the GPU nor the weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from builder.plan.devices import DEVICES
from builder.plan.headroom import headroom
from builder.plan.host import Host
from builder.plan.make import gather
from builder.plan.memory import memory_fit, target_read_bytes
from builder.plan.report import Plan, check
from builder.spec import load_pipeline

PIPELINES = Path(__file__).parents[3] / "pipelines"
HOST = Host(memory=16 << 30, cores=2)


def planned(name: str) -> Plan:
    return check(gather(load_pipeline(PIPELINES / f"{name}.yaml"), HOST))


@pytest.mark.parametrize("name", ["llama-7b-a100", "llama-70b-4xh100", "llama-exit-a100", "qwen3-l40s", "tiny-trtllm"])
def test_an_example_passes_every_rule(name: str) -> None:
    plan = planned(name)
    assert plan.ok, [finding for finding in plan.findings if not finding.ok]
    assert plan.memory.fits
    assert plan.largest.batch >= 1


def test_stated_times_give_the_worked_example_and_the_roofline_stands_beside_it() -> None:
    told = planned("llama-7b-a100").to_json()
    wanted = {"source": "measured", "tokens_per_round": 3.36, "round_ms": 41.0, "ms_per_token": 12.2, "speedup": 2.46}
    assert {key: told["predicted"][key] for key in wanted} == wanted
    roofline = told["roofline"]
    assert roofline["source"] == "roofline"
    assert roofline["plain_ms"] == pytest.approx(13_214_687_232 / 2_039e9 * 1e3, abs=0.005)
    assert roofline["speedup"] > told["predicted"]["speedup"]
    assert roofline["leaves_out"] and told["predicted"]["leaves_out"]


def test_without_stated_times_the_roofline_is_the_prediction() -> None:
    plan = planned("qwen3-l40s")
    assert plan.predicted is plan.roofline is not None
    assert plan.predicted.prediction is None  # no acceptance is known
    assert "speedup" not in plan.to_json()["predicted"]
    assert 0 < plan.to_json()["predicted"]["break_even_acceptance"] < 1


def test_a_model_over_four_gpus_reads_a_quarter_on_each() -> None:
    context = gather(load_pipeline(PIPELINES / "llama-70b-4xh100.yaml"), HOST)
    items = {item.name: item.size for item in memory_fit(context).items}
    assert items["target weights"] == target_read_bytes(context) // 4
    assert items["target kv cache"] / items["draft kv cache"] == pytest.approx(80 / 32)  # by their layers
    plan = check(context)
    assert plan.roofline is not None
    assert plan.roofline.times.plain == pytest.approx(target_read_bytes(context) / DEVICES["H100"].bandwidth / 4)


def test_a_second_instance_of_the_target_is_counted() -> None:
    context = gather(load_pipeline(PIPELINES / "qwen3-l40s.yaml"), HOST)
    names = [item.name for item in memory_fit(context).items]
    assert {"plain instance", "plain instance kv cache", "cuda graphs"} <= set(names)


@pytest.mark.parametrize("name", ["llama-7b-a100", "qwen3-l40s"])
def test_the_largest_batch_fits_and_one_more_does_not(name: str) -> None:
    context = gather(load_pipeline(PIPELINES / f"{name}.yaml"), HOST)
    room = headroom(context)
    for batch, fits in ((room.batch, True), (room.batch + 1, False)):
        engine = context.spec.engine
        rows = max(engine.max_num_tokens, batch * (context.draft_tokens + 1))
        cache = engine.kv_cache.model_copy(update={"memory": 1 << 50})
        wanted = engine.model_copy(update={"max_batch_size": batch, "max_num_tokens": rows, "kv_cache": cache})
        spec = context.spec.model_copy(update={"engine": wanted})
        assert memory_fit(dataclasses.replace(context, spec=spec)).fits is fits
