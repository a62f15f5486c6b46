"""The memory table is arithmetic a reader can redo."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from builder.plan.devices import DEVICES
from builder.plan.engine_rules import memory_fits
from builder.plan.memory import RESERVE, kv_blocks, memory_fit
from builder.plan.parameters import cache_bytes_per_token, count_parameters, int4_bytes
from builder.plan.report import check
from builder.spec.draft import Quantization
from builder.weights.config import ModelConfig
from tests.unit.plan.conftest import HOST

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 90,
}


def small(**changes: Any) -> ModelConfig:
    base = ModelConfig("llama", 48, 80, 3, 6, 2, 8, 90, 64, 1e-5, 10000.0)
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (small(), lambda: LlamaForCausalLM(LlamaConfig(**SIZES))),
        (small(tie_word_embeddings=True), lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))),
        (
            small(qkv_bias=True, output_bias=True, mlp_bias=True),
            lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
        ),
        (small(architecture="qwen2", qkv_bias=True), lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES))),
        (small(architecture="qwen3", qk_norm=True, head_dim=16), lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16))),
    ],
)
def test_parameters_are_counted_as_transformers_counts_them(config: ModelConfig, model: Any) -> None:
    with torch.device("meta"):
        reference = model()
    count = count_parameters(config)
    head = 0 if config.tie_word_embeddings else count.head  # a checkpoint holds a tied head once
    assert count.embedding + count.linear + count.vectors + head == sum(weight.numel() for weight in reference.parameters())


def test_the_demo_s_engines_are_as_large_as_the_files_the_build_writes(make_context: Any) -> None:
    items = {item.name: item.size for item in memory_fit(make_context()).items}
    # weights.safetensors of the built demo, less a header of some kB
    assert items["target weights"] + items["target embedding"] == pytest.approx(325_742_976, abs=50_000)
    assert items["draft weights"] + items["draft embedding"] == pytest.approx(132_440_384, abs=50_000)


def test_float32_doubles_the_target_s_embedding_and_halves_the_blocks_of_a_budget(make_context: Any) -> None:
    engine = {"kv_cache": {"memory": "90MiB"}}
    half, full = make_context(engine=engine), make_context(engine=engine, target={"weights": "t", "dtype": "float32"})
    assert memory_fit(full).items[1].size == 2 * memory_fit(half).items[1].size
    assert kv_blocks(full) == kv_blocks(half) // 2


def test_int4_is_half_a_byte_with_a_scale_and_perhaps_a_minimum_for_each_group() -> None:
    assert int4_bytes(1024, Quantization(group_size=32)) == 512 + 32 * 2
    assert int4_bytes(1024, Quantization(group_size=64, symmetric=False)) == 512 + 16 * 4


def test_a_position_holds_keys_and_values_of_every_layer(make_context: Any) -> None:
    assert cache_bytes_per_token(make_context().target, "bfloat16") == 2 * 30 * 3 * 64 * 2


def test_a_draft_with_its_own_weights_takes_its_own_half_of_the_cache(make_context: Any) -> None:
    engine = {"kv_cache": {"memory": "90MiB"}}
    shared, own = make_context(engine=engine), make_context(engine=engine, draft={"weights": "d.gguf"})
    assert shared.shared_cache and not own.shared_cache
    assert kv_blocks(own) == kv_blocks(shared) // 2


def test_the_cache_takes_no_more_than_a_full_batch_can_use(make_context: Any) -> None:
    context = make_context(engine={"max_batch_size": 2, "max_seq_len": 100})
    assert kv_blocks(context) == 2 * 7  # 100 positions need 7 blocks of 16
    cache = next(item for item in memory_fit(context).items if item.name == "kv cache")
    assert cache.size == 14 * 16 * cache_bytes_per_token(context.target, "bfloat16")


def test_a_draft_cut_to_half_its_layers_is_smaller_by_their_weights(make_context: Any) -> None:
    def draft_bytes(context: Any) -> int:
        return next(item.size for item in memory_fit(context).items if item.name == "draft weights")

    whole, cut = make_context(), make_context(draft={"layers": 15})
    linear = count_parameters(whole.target).linear // 2
    vectors = 15 * 2 * 576
    assert draft_bytes(whole) - draft_bytes(cut) == int4_bytes(linear, Quantization()) + vectors * 4


def test_the_blocks_stay_within_the_budget_and_use_it_up(make_context: Any) -> None:
    context = make_context(engine={"kv_cache": {"memory": "100MiB", "block_size": 32}})
    block = cache_bytes_per_token(context.target, "bfloat16") * 32
    blocks = kv_blocks(context)
    assert blocks * block <= 100 << 20 < (blocks + 1) * block
    assert memory_fit(context).kv_tokens == blocks * 32


def test_a_version_on_standby_takes_the_memory_of_the_engine_again_and_no_second_reserve(make_context: Any) -> None:
    with_it, without = (memory_fit(make_context(versions={"standby": standby})) for standby in (True, False))
    reserve = next(item.size for item in without.items if item.name == RESERVE)
    assert with_it.total - without.total == without.total - reserve


def test_where_only_the_standby_does_not_fit_the_mend_is_to_do_without(make_context: Any) -> None:
    context = make_context()
    one, two = (memory_fit(make_context(versions={"standby": standby})).total for standby in (False, True))
    narrow = dataclasses.replace(context, host=dataclasses.replace(context.host, memory=(one + two) // 2))
    assert "versions.standby" in str(memory_fits(narrow).mend)
    too_narrow = dataclasses.replace(context, host=dataclasses.replace(context.host, memory=one // 2))
    assert "kv cache" in str(memory_fits(too_narrow).mend)


def test_a_gpu_that_is_not_here_is_planned_for_by_kinds_of_gpu(make_context: Any) -> None:
    away = check(make_context(engine={"device": "cuda"}))
    assert away.memory.capacity is None and away.largest is None and away.memory.fits
    assert away.devices["H200"].batch > away.devices["L4"].batch > 0
    here = check(make_context(engine={"device": "cuda"}, host=dataclasses.replace(HOST, gpu_memory=DEVICES["L4"].memory)))
    assert here.ok and here.largest == away.devices["L4"]
