"""Each rule says yes to the demo, and no, with a mend that helps, to the one thing it looks at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.errors import CheckError
from builder.plan.calibration import CalibrationRecord, ExitStanding
from builder.plan.host import Host
from builder.plan.report import check
from builder.plan.rules import RULES
from tests.unit.plan.conftest import HOST

GIB = 1 << 30
CALIBRATED = ExitStanding(
    CalibrationRecord("exits-1", "1", {"tokenizer": "t"}, True, "At most 2 %."), {"tokenizer": "t"}, "builder calibrate p.yaml"
)
STALE, UNBOUNDED = replace(CALIBRATED, wanted={"tokenizer": "u"}), replace(CALIBRATED, record=replace(CALIBRATED.record, bounded=False))
EXITS: dict[str, Any] = {"early_exit": {"mode": "answer"}, "speculation": {"proposer": "none"}, "exits": CALIBRATED}
GPU: dict[str, Any] = {"engine": {"device": "cuda"}, "host": replace(HOST, gpu_memory=24 * GIB)}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vocab-match", {"draft_model": {"vocab_size": 32000}}, "same"),
    ("tokenizer-match", {"draft_tokenizer": "another"}, "same"),
    ("draft-layers-valid", {"draft": {"layers": 31}}, "30 or less"),
    ("draft-vocabulary-valid", {"draft": {"vocabulary": 49_153}}, "to all"),
    ("group-size-divides", {"draft": {"quantization": {"group_size": 128}}}, "32 or 64"),
    ("draft-is-cheaper", {"draft": {"weights": "big.gguf"}, "draft_model": {"num_layers": 300}}, "smaller draft"),
    ("draft-device-available", {"draft": {"device": "cuda"}}, "same or cpu, or plan and build on a GPU host"),
    ("device-available", {"engine": {"device": "cuda"}}, "engine.device to cpu"),
    ("exits-run-on-device", EXITS | GPU, "early_exit.mode to none"),
    ("context-within-model", {"target_model": {"max_position": 1024}}, "max_seq_len to 1024"),
    ("context-within-model", {"draft": {"weights": "d"}, "draft_model": {"max_position": 512}}, "max_seq_len to 512"),
    ("sliding-window", {"target_model": {"sliding_window": 512}}, "max_seq_len to 512"),
    ("kv-holds-one-sequence", {"engine": {"kv_cache": {"memory": "32MiB"}}}, "45MiB"),
    ("verify-fits-one-pass", {"engine": {"max_num_tokens": 79}}, "max_num_tokens to 80"),
    ("memory-fit", {"host": Host(GIB, 2)}, "kv cache"),
    ("memory-fit", GPU | {"host": replace(HOST, gpu_memory=GIB)}, "kv cache"),
    ("instruction-set-available", {"engine": {"instruction_set": "amx"}}, "auto or avx2"),
    ("threads-within-cores", {"engine": {"threads": 3}}, "2 or null"),
    ("exit-layers-valid", EXITS | {"early_exit": {"mode": "answer", "layers": [20, 30]}}, "below 30"),
    ("exit-calibrated", EXITS | {"exits": replace(CALIBRATED, record=None)}, "builder calibrate p.yaml"),
    ("exit-calibrated", EXITS | {"exits": STALE}, "builder calibrate p.yaml"),
    ("exit-calibrated", EXITS | {"exits": UNBOUNDED}, "max_disagreement"),
    ("exit-without-speculation", EXITS | {"speculation": {"proposer": "draft_model"}}, "proposer to none"),
    ("exit-without-speculation", EXITS | {"speculation": {"proposer": "ngram"}}, "proposer to none"),
]


def test_the_demo_passes_every_rule(make_context: Any) -> None:
    plan = check(make_context())
    assert plan.ok, [finding for finding in plan.findings if not finding.ok]
    plan.require()


@pytest.mark.parametrize(("rule", "change", "mend"), REFUSED)
def test_a_rule_refuses_what_it_is_for_and_nothing_else(make_context: Any, rule: str, change: dict[str, Any], mend: str) -> None:
    plan = check(make_context(**change))
    refused = [finding for finding in plan.findings if not finding.ok]
    assert [finding.id for finding in refused] == [rule]
    assert refused[0].mend is not None and mend in refused[0].mend
    with pytest.raises(CheckError, match=rule):
        plan.require()


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("draft-device-available", {"draft": {"device": "cpu"}}),
        ("draft-device-available", GPU | {"draft": {"device": "cpu"}}),
        ("draft-device-available", {"draft": {"device": "cuda"}, "host": GPU["host"]}),
        ("device-available", GPU),
        ("memory-fit", GPU | {"host": replace(HOST, memory=GIB, gpu_memory=24 * GIB)}),
        ("sliding-window", {"target_model": {"sliding_window": 2048}}),
        ("context-within-model", {"target_model": {"max_position": 2048}}),
        ("draft-layers-valid", {"draft": {"layers": 30}}),
        ("draft-vocabulary-valid", {"draft": {"vocabulary": 49_152}}),
        ("kv-holds-one-sequence", {"engine": {"kv_cache": {"memory": "45MiB"}}}),
        ("verify-fits-one-pass", {"engine": {"max_num_tokens": 80}}),
        ("threads-within-cores", {"engine": {"threads": 2}}),
        ("exit-calibrated", EXITS),
        ("exit-layers-valid", EXITS | {"early_exit": {"mode": "answer", "layers": [29]}}),
        ("instruction-set-available", {"engine": {"instruction_set": "generic"}}),
    ],
)
def test_a_rule_allows_what_just_fits(make_context: Any, rule: str, change: dict[str, Any]) -> None:
    assert check(make_context(**change)).ok, rule


def test_every_rule_has_a_refusal_tested_here_and_an_id_of_its_own(make_context: Any) -> None:
    ids = [rule(make_context()).id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert set(ids) == {rule for rule, _, _ in REFUSED}


@pytest.mark.parametrize("change", [{"draft": None, "speculation": {"proposer": "ngram"}}, {"speculation": {"proposer": "none"}}])
def test_without_a_draft_the_rules_about_drafts_pass(make_context: Any, change: dict[str, Any]) -> None:
    plan = check(make_context(**change))
    assert plan.ok
    assert plan.byte_bound_break_even is None
    assert "draft weights" not in [item.name for item in plan.memory.items]


def test_several_refusals_are_listed_together(make_context: Any) -> None:
    plan = check(make_context(engine={"threads": 9, "instruction_set": "amx"}))
    with pytest.raises(CheckError) as caught:
        plan.require()
    assert "2 checks failed" in caught.value.what
    assert "threads-within-cores" in caught.value.what and "instruction-set-available" in caught.value.what
    assert caught.value.exit_code == 1


def test_a_plan_is_plain_json(make_context: Any) -> None:
    import json

    data = json.loads(json.dumps(check(make_context()).to_json()))
    assert data["ok"] is True
    assert data["memory"]["total_bytes"] == sum(item["bytes"] for item in data["memory"]["items"])
    assert {"id", "ok", "message", "mend"} == set(data["findings"][0])
