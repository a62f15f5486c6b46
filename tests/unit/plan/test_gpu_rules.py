"""Each rule of the GPU backends says yes to a sound pipeline, and no, with a mend that helps, to the one thing it looks at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.plan.calibration import CalibrationRecord, ExitStanding
from builder.plan.report import check
from builder.plan.rules import LLMAPI_RULES, TRT_ENGINE_RULES
from builder.plan.trtllm.flags import build_flags
from builder.weights.shape import read_shape
from tests.unit.plan.conftest import BASE, MakeContext

ENGINE: dict[str, Any] = {
    "backend": "trtllm-engine",
    "gpu": {"name": "A100-80GB", "count": 2},
    "max_seq_len": 2048,
    "max_num_tokens": 2048,
    "kv_cache": {"memory": "20GiB", "block_size": 32},
}
DRAFT = {"weights": "llama-68m", "quantization": {"group_size": 128}}
PLAIN_SPECULATION = {"proposer": "draft_model"}
SPLIT = {"launch": "orchestrator", "target": {"tensor_parallel": 2}}  # the target over two GPUs, the draft on one

WIDE = {"intermediate_size": 3200}  # whole groups of 128 on one GPU, not on two


def measured(acceptance: float, plain: float, draft: float, verify: float) -> dict[str, Any]:
    """Times in milliseconds."""
    times = {"plain_ms": plain, "draft_ms": draft, "verify_ms": verify}
    return PLAIN_SPECULATION | {"measured": {"acceptance": acceptance, **times}}


@pytest.fixture
def make_gpu(make_context: MakeContext) -> MakeContext:
    """make_gpu(engine={...}, trt={...}, ...): Llama 2 7B with a 68M draft on two A100, changed where asked."""
    target, draft = read_shape("llama-2-7b", BASE).config, read_shape("llama-68m", BASE).config

    def make(*, engine: dict[str, Any] | None = None, trt: dict[str, Any] | None = None, **changes: Any) -> Any:
        merged = ENGINE | (engine or {}) | {"tensorrt_llm": trt or {}}
        sections: dict[str, Any] = {"draft": DRAFT, "speculation": PLAIN_SPECULATION, **changes, "engine": merged}
        shapes = {"target_model": changes.pop("target_model", {}), "draft_model": changes.pop("draft_model", {})}
        sections = {key: value for key, value in sections.items() if key not in shapes}
        return make_context(target=sections.pop("target", {"weights": "7b"}), base_models=(target, draft), **shapes, **sections)

    return make


CUT = {"weights": "same", "layers": 8, "quantization": {"group_size": 128}}  # the target's own first layers
RECORD = CalibrationRecord("exits-1", "1", {"tokenizer": "t"}, True, "At most 2 %.")
UNBOUNDED = replace(RECORD, bounded=False)
CALIBRATED = ExitStanding(RECORD, {"tokenizer": "t"}, "builder calibrate p.yaml --grpc HOST:PORT")
OWN = {"num_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_heads": 32, "num_kv_heads": 32, "head_dim": 128}
EXITS: dict[str, Any] = {"early_exit": {"mode": "answer"}, "draft": CUT, "exits": CALIBRATED, "draft_model": OWN}


def flags(role: str, **values: Any) -> dict[str, Any]:
    return {"trt": {role: {"flags": values}}}


def parameters(role: str, **values: Any) -> dict[str, Any]:
    return {"trt": {role: {"parameters": values}}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vocab-match", {"draft_model": {"vocab_size": 32064}}, "vocab_size"),
    ("tokenizer-match", {"draft_tokenizer": "another"}, "same"),
    ("draft-layers-valid", {"draft": DRAFT | {"layers": 3}}, "2 or less"),
    ("group-size-divides", {"draft_model": {"intermediate_size": 3008}}, "32 or 64"),
    ("draft-is-cheaper", {"draft_model": {"intermediate_size": 5_760_000}, "speculation": measured(0.9, 9, 1, 9)}, "smaller draft"),
    ("draft-device-available", {"draft": DRAFT | {"device": "cpu"}}, "draft.device to same"),
    ("context-within-model", {"engine": {"max_seq_len": 4096}}, "max_seq_len to 2048"),
    ("sliding-window", {"target_model": {"sliding_window": 1024}}, "max_seq_len to 1024"),
    ("kv-holds-one-sequence", {"engine": {"kv_cache": {"memory": "512MiB", "block_size": 32}}}, "1036MiB"),
    ("verify-fits-one-pass", {"engine": {"max_num_tokens": 79}}, "max_num_tokens to 80"),
    ("memory-fit", {"engine": {"gpu": {"name": "L4", "count": 2}}}, "target kv cache"),
    ("trtllm-version-supported", {"trt": {"version": "1.3.0"}}, "trtllm-llmapi"),
    ("trtllm-version-supported", {"trt": {"version": "0.17.0"}}, "1.2.x"),
    ("proposer-supported", {"speculation": {"proposer": "ngram"}, "draft": None}, "draft_model, hybrid or none"),
    ("settings-supported", {"speculation": PLAIN_SPECULATION | {"control": {"early_stop": True}}}, "torch_aot"),
    ("settings-supported", {"draft": DRAFT | {"vocabulary": 4096}}, "torch_aot"),
    ("dtype-supported", {"engine": {"gpu": {"name": "V100-32GB", "count": 2}, "kv_cache": {"memory": "2GiB"}}}, "sm_80"),
    ("engine-matches-server", {"engine": {"gpu": {"name": "A100-80GB", "count": 2, "built_on": "H100"}}}, "built_on"),
    ("engine-matches-server", {"trt": {"triton": "25.03"}}, "25.12"),
    ("awq-format-supported", {"draft": DRAFT | {"quantization": {"group_size": 32}}}, "group_size: 128"),
    ("awq-format-supported", {"draft": DRAFT | {"quantization": {"group_size": 128, "symmetric": False}}}, "symmetric: true"),
    ("awq-group-within-gpu", {"trt": {"target": {"tensor_parallel": 2}, "draft": {"tensor_parallel": 2}}, "draft_model": WIDE}, "fewer"),
    ("tp-divides-heads", {"target_model": {"num_heads": 33, "num_kv_heads": 33}, "trt": SPLIT}, "target.tensor_parallel to 1"),
    ("world-size", {"trt": {"launch": "orchestrator", "target": {"tensor_parallel": 4}}}, "count to 4"),
    ("world-size", {"trt": {"launch": "orchestrator", "target": {"tensor_parallel": 2, "gpus": [0]}}}, "Name 2"),
    ("world-size", {"trt": {"target": {"tensor_parallel": 2}}}, "orchestrator"),
    ("world-size", {"engine": {"gpu": {"name": "A100-80GB", "count": 4, "nodes": 2}}, "trt": {"launch": "orchestrator"}}, "leader"),
    (
        "draft-on-target-node",
        {"engine": {"gpu": {"name": "A100-80GB", "count": 2, "nodes": 2}}, "trt": {"draft": {"gpus": [1]}}},
        "draft.gpus",
    ),
    ("speculation-pays", {"speculation": measured(0.2, 30, 9, 35)}, "smaller draft"),
    ("speculation-pays", {"speculation": measured(0.9, 30, 40, 35)}, "smaller draft"),
    ("names-of-version", flags("target", gather_all_logits=True), "version"),
    ("names-of-version", parameters("draft", kv_cache_fraction=0.4), "version"),
    ("draft-tokens-within-engine", flags("target", max_draft_len=3), "max_draft_len to 4"),
    ("draft-tokens-within-engine", flags("target", max_draft_len=0), "max_draft_len to 4"),
    ("draft-tokens-within-engine", flags("target", speculative_decoding_mode="medusa"), "speculative_decoding_mode"),
    ("streams-and-batches", parameters("target", gpt_model_type="V1"), "gpt_model_type"),
    ("streams-and-batches", flags("draft", max_beam_width=4), "max_beam_width"),
    ("streams-and-batches", flags("draft", max_batch_size=1), "max_batch_size"),
    ("vocab-padded-alike", {"target_model": {"vocab_size": 32001}, "draft_model": {"vocab_size": 32001}, "trt": SPLIT}, "same number"),
    (
        "draft-logits-gathered",
        {"trt": {"draft_logits": True, "draft": {"flags": {"gather_generation_logits": False}}}},
        "draft_logits to false",
    ),
    ("no-context-logits", flags("target", gather_context_logits=True), "gather_context_logits"),
    ("kv-reuse-for-drafts", {"engine": {"kv_cache": {"memory": "20GiB", "block_size": 32, "prefix_caching": False}}}, "prefix_caching"),
    ("kv-reuse-for-drafts", parameters("draft", enable_kv_cache_reuse=False), "enable_kv_cache_reuse"),
    ("kv-reuse-paged-context", flags("target", use_paged_context_fmha="disable"), "use_paged_context_fmha"),
    ("same-limits", flags("draft", max_seq_len=1024), "max_seq_len"),
    ("logits-dtype-agrees", flags("draft", logits_dtype="float16"), "logits_dtype"),
    ("placeholders-filled", parameters("target", gpu_device_ids="${GPU_IDS}"), "Write the value out"),
    (
        "kv-pools-share-gpu",
        {"trt": {role: {"parameters": {"kv_cache_free_gpu_mem_fraction": 0.9}} for role in ("target", "draft")}},
        "Leave",
    ),
    ("kv-counts-both", parameters("target", max_tokens_in_paged_kv_cache=40960), "Leave"),
    ("settings-supported", EXITS | {"early_exit": {"mode": "answer", "layers": [20]}}, "Leave it out"),
    ("exit-is-the-draft", EXITS | {"draft": DRAFT}, "draft.weights to same"),
    ("exit-is-the-draft", EXITS | {"draft": CUT | {"layers": "all"}}, "draft.layers to less than 32"),
    ("exit-is-the-draft", EXITS | {"speculation": {"proposer": "hybrid"}}, "proposer to draft_model"),
    ("exit-is-the-draft", EXITS | {"speculation": {"proposer": "none"}, "draft": None}, "proposer to draft_model"),
    ("exit-is-the-draft", {"early_exit": {"mode": "draft"}, "speculation": {"proposer": "early_exit"}}, "early_exit.mode to none"),
    ("exit-logits-gathered", EXITS | {"trt": {"draft": {"flags": {"gather_generation_logits": False}}}}, "early_exit.mode to none"),
    ("exit-calibrated", EXITS | {"exits": replace(CALIBRATED, wanted={"tokenizer": "u"})}, "builder calibrate p.yaml --grpc"),
    ("exit-calibrated", EXITS | {"exits": replace(CALIBRATED, record=UNBOUNDED)}, "max_disagreement"),
]


def test_a_sound_pipeline_passes_every_rule_of_engines(make_gpu: MakeContext) -> None:
    plan = check(make_gpu())
    assert plan.ok, [finding for finding in plan.findings if not finding.ok]


@pytest.mark.parametrize(("rule", "change", "mend"), REFUSED, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(REFUSED)])
def test_a_rule_refuses_what_it_is_for_and_nothing_else(make_gpu: MakeContext, rule: str, change: dict[str, Any], mend: str) -> None:
    refused = [finding for finding in check(make_gpu(**change)).findings if not finding.ok]
    assert [finding.id for finding in refused] == [rule], refused
    assert refused[0].mend is not None and mend in refused[0].mend


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("draft-tokens-within-engine", flags("target", max_draft_len=8)),
        ("kv-counts-both", parameters("target", max_tokens_in_paged_kv_cache=32768)),
        ("kv-pools-share-gpu", {"trt": {"draft": {"gpus": [1], "parameters": {"kv_cache_free_gpu_mem_fraction": 0.9}}}}),
        ("world-size", {"trt": SPLIT}),
        ("draft-on-target-node", {"trt": {"draft": {"gpus": [1]}}}),
        ("engine-matches-server", {"engine": {"gpu": {"name": "H100", "count": 2, "built_on": "H200"}}, "trt": {"triton": "25.12"}}),
        ("awq-format-supported", {"draft": DRAFT | {"quantization": {"group_size": 64}}}),
        ("draft-logits-gathered", {"trt": {"draft_logits": True}}),
        ("kv-reuse-paged-context", flags("target", use_paged_context_fmha=True)),
        ("trtllm-version-supported", {"trt": {"version": "1.2.0rc3"}}),
        ("settings-supported", {"engine": {"policy": "fair"}}),
        ("proposer-supported", {"speculation": {"proposer": "hybrid"}}),
        ("settings-supported", {"chargeback": {"tenants": ["a"]}, "serving": {"tenants": {"a": {"share": 2}}}}),
        ("exit-is-the-draft", EXITS),
        ("exit-logits-gathered", EXITS | {"trt": {"draft_logits": True}}),
        ("exit-calibrated", EXITS | {"exits": replace(CALIBRATED, record=None)}),
    ],
)
def test_a_rule_allows_what_just_fits(make_gpu: MakeContext, rule: str, change: dict[str, Any]) -> None:
    assert check(make_gpu(**change)).ok, rule


def test_every_rule_of_engines_has_a_refusal_tested_here(make_gpu: MakeContext) -> None:
    ids = [rule(make_gpu()).id for rule in TRT_ENGINE_RULES]
    assert len(set(ids)) == len(ids)
    assert set(ids) == {rule for rule, _, _ in REFUSED}


def test_without_a_draft_the_rules_about_drafts_pass(make_gpu: MakeContext) -> None:
    plan = check(make_gpu(draft=None, speculation={"proposer": "none"}))
    assert plan.ok
    assert plan.predicted is None and plan.roofline is None


LLMAPI = {"backend": "trtllm-llmapi"}
AUTO_OFF = {"speculative_config__acceptance_rate_threshold": 0.4}
REFUSED_LLMAPI: list[tuple[str, dict[str, Any], str]] = [
    ("names-of-version", {"trt": {"arguments": AUTO_OFF}}, "change the version"),
    ("names-of-version", {"trt": {"arguments": {"model_kwargs": "x"}}}, "change the version"),
    ("names-of-version", {"trt": {"version": "1.3.0", "arguments": {"speculative_config__decoding_type": "DraftTarget"}}}, "change"),
    ("names-of-version", {"trt": {"arguments": {"kv_cache_config__fraction": 0.4}}}, "change the version"),
    ("names-of-version", {"trt": {"arguments": {"scheduler_settings__policy": "x"}}}, "change the version"),
    ("draft-tokens-within-engine", {"trt": {"arguments": {"speculative_config__max_draft_len": 2}}}, "max_draft_len"),
    (
        "draft-schedule-alone",
        {"trt": {"arguments": {"speculative_config__draft_len_schedule": "1:4", "speculative_config__max_concurrency": 8}}},
        "Keep one",
    ),
    ("overlap-scheduler", {"trt": {"arguments": {"disable_overlap_scheduler": False}}}, "disable_overlap_scheduler"),
    ("kv-pools-share-gpu", {"trt": {"arguments": {"kv_cache_config__free_gpu_memory_fraction": 0.9}}}, "plain_instance"),
    ("awq-format-supported", {"draft": DRAFT | {"quantization": {"group_size": 64}}}, "128"),
    ("trtllm-version-supported", {"trt": {"version": "1.9.0"}}, "1.2.x or 1.3.x"),
    ("settings-supported", {"chargeback": {"tenants": ["a"]}, "serving": {"tenants": {"a": {"share": 2}}}}, "torch_aot"),
    ("exit-supported", {"early_exit": {"mode": "answer"}}, "trtllm-engine"),
    ("exit-supported", {"early_exit": {"mode": "draft"}, "speculation": {"proposer": "early_exit"}}, "trtllm-engine"),
]


@pytest.mark.parametrize(("rule", "change", "mend"), REFUSED_LLMAPI, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(REFUSED_LLMAPI)])
def test_a_rule_of_arguments_refuses_what_it_is_for(make_gpu: MakeContext, rule: str, change: dict[str, Any], mend: str) -> None:
    refused = [finding for finding in check(make_gpu(engine=LLMAPI, **change)).findings if not finding.ok]
    assert [finding.id for finding in refused] == [rule], refused
    assert refused[0].mend is not None and mend in refused[0].mend


@pytest.mark.parametrize(
    "change",
    [
        {"trt": {"version": "1.2.1"}},
        {"trt": {"version": "1.3.0", "arguments": AUTO_OFF}},
        {"trt": {"version": "1.3.0", "arguments": {"disable_overlap_scheduler": False}}},
        {"trt": {"plain_instance": False, "arguments": {"kv_cache_config__free_gpu_memory_fraction": 0.9}}},
        {"speculation": {"proposer": "ngram"}},
    ],
)
def test_sound_arguments_pass_every_rule(make_gpu: MakeContext, change: dict[str, Any]) -> None:
    plan = check(make_gpu(engine=LLMAPI, **change))
    assert plan.ok, [finding for finding in plan.findings if not finding.ok]


def test_every_rule_of_arguments_has_a_refusal_tested_here(make_gpu: MakeContext) -> None:
    own = {rule(make_gpu(engine=LLMAPI)).id for rule in LLMAPI_RULES} - {rule(make_gpu()).id for rule in TRT_ENGINE_RULES}
    assert own | {"names-of-version", "draft-tokens-within-engine", "kv-pools-share-gpu"} <= {rule for rule, _, _ in REFUSED_LLMAPI}


def test_a_pipeline_that_is_not_calibrated_yet_is_told_the_command(make_gpu: MakeContext) -> None:
    plan = check(make_gpu(**EXITS | {"exits": replace(CALIBRATED, record=None)}))
    message = next(finding.message for finding in plan.findings if finding.id == "exit-calibrated")
    assert "nothing leaves" in message and "builder calibrate p.yaml --grpc" in message


def test_only_the_draft_gathers_logits_for_exits(make_gpu: MakeContext) -> None:
    context = make_gpu(**EXITS)
    assert build_flags(context, "draft")["gather_generation_logits"] is True
    assert "gather_generation_logits" not in build_flags(context, "target")


def test_a_name_of_another_version_is_named_with_that_version(make_gpu: MakeContext) -> None:
    plan = check(make_gpu(engine=LLMAPI, trt={"arguments": AUTO_OFF}))
    message = next(finding.message for finding in plan.findings if finding.id == "names-of-version")
    assert "a name of 1.3" in message and "acceptance_length_threshold" in message
