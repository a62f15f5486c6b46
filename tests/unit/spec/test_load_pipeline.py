"""Reading pipeline.yaml: every mistake gets its file, its line, and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import SpecError
from builder.spec import load_pipeline

HEAD = "metadata: {name: demo, owner: team}\ntarget: {weights: model.gguf}\n"  # lines 1 and 2


def error_of(tmp_path: Path, text: str | bytes) -> SpecError:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load_pipeline(path)
    return caught.value


def test_a_minimal_pipeline_gets_the_documented_defaults(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(HEAD)
    loaded = load_pipeline(path)
    assert loaded.base == tmp_path
    assert loaded.spec.speculation.proposer == "hybrid"
    assert loaded.spec.draft is not None and loaded.spec.draft.from_target
    assert loaded.spec.engine.kv_cache.memory == 1 << 30
    assert loaded.spec.serving.ports == {"http": 8000, "grpc": 8001, "metrics": 8002}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("speculation:\n  max_draft_token: 4\n", 4, "unknown key `max_draft_token` in speculation (did you mean `max_draft_tokens`?)"),
        ("specultion: {}\n", 3, "unknown key `specultion` (did you mean `speculation`?)"),
        ("engine:\n  kv_cache:\n    blocksize: 16\n", 5, "did you mean `block_size`?"),
        ("engine:\n  kv_cache:\n    prefix_cache: true\n", 5, "did you mean `prefix_caching`?"),
        ("engine: {kv_cache: {prefix_isolation: tenants}}\n", 3, "`engine.kv_cache.prefix_isolation` must be 'none' or 'tenant'"),
        ("engine: {max_batch_size: '4'}\n", 3, "`engine.max_batch_size` must be a whole number, got text '4'"),
        ("engine: {max_batch_size: true}\n", 3, "must be a whole number, got true"),
        ("engine: {max_batch_size: 4.5}\n", 3, "must be a whole number, got 4.5"),
        ("engine: {threads: 0}\n", 3, "`engine.threads` must be at least 1, got 0"),
        ("engine: [a]\n", 3, "`engine` must be a section of keys, got a list"),
        ("speculation:\n  proposer: off\n", 4, "got off (YAML reads it as false; quote it if text is meant)"),
        ("speculation: {max_draft_tokens: 17}\n", 3, "must be at most 16, got 17"),
        ("draft: {layers: some}\n", 3, "`draft.layers` must be 'all' or a whole number, got text 'some'"),
        ("draft: {quantization: {bits: 8}}\n", 3, "`draft.quantization.bits` must be 4, got 8"),
        ("draft:\n  weights: null\n", 4, "`draft.weights` must be text, got null (YAML reads it as nothing)"),
        ("engine: {kv_cache: {memory: 1024}}\n", 3, "a size is a number with a unit"),
        ("engine: {kv_cache: {memory: 1Gi}}\n", 3, "unknown unit 'Gi'"),
        ("engine: {kv_cache: {memory: 4kB}}\n", 3, "`engine.kv_cache.memory` must be at least 1048576"),
        ("chargeback: {tenants: [search, other]}\n", 3, "`other` is the name for everybody who is not listed"),
        ("chargeback: {tenants: [search, search]}\n", 3, "search listed more than once"),
        ("chargeback:\n  tenants:\n  - search\n  - Bad Name\n", 6, "`chargeback.tenants[1]` must be of the form"),
        ("apiVersion: tandem/v2\n", 3, "`apiVersion` must be 'tandem/v1', got text 'tandem/v2'"),
        ("draft: null\n", 3, "speculation.proposer hybrid needs a draft, but draft is null"),
        ("serving:\n  grpc_port: 8000\n", 4, "serving.grpc_port and serving.http_port are both 8000"),
        ("engine:\n  max_num_tokens: 8\n", 4, "less than max_batch_size 16"),
        ("engine: {max_seq_len: 16, kv_cache: {block_size: 32}}\n", 3, "block_size 32 is larger than max_seq_len 16"),
        ("serving:\n  max_tokens: 2048\n", 4, "leaves no room for a prompt"),
        ("engine: {max_seq_len: 63, kv_cache: {eviction: attention_sink}}\n", 3, "at least four blocks, 64 tokens, and it is 63"),
        (
            "engine: {backend: trtllm-llmapi, gpu: {name: H100}, kv_cache: {eviction: attention_sink}}\n",
            3,
            "attention_sink is not there",
        ),
    ],
)
def test_a_broken_rule_names_its_key_and_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    error = error_of(tmp_path, HEAD + text)
    assert error.where == f"{tmp_path}/pipeline.yaml:{line}"
    assert words in error.what


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("metadata:\n\tname: x\n", 2, "Indent with spaces"),
        ("metadata: [a\ntarget: b\n", 2, "expected ',' or ']'"),
        ("a: b: c\n", 1, "mapping values are not allowed here"),
        ("a: b\n---\nc: d\n", 2, "expected a single document in the stream but found another document"),
        (HEAD + "target: {weights: other}\n", 3, "key `target` is already set on line 2"),
        ("a: &x [1]\nb: *x\n", 2, "aliases (*name) are not used in pipelines"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "tag !!python/object/apply:os.system is not used"),
        ("a: !secret b\n", 1, "tag !secret is not used"),
        ("1: b\n", 1, "keys are text"),
        ("a: 0b_\n", 1, "is no number"),
        ("- a\n", 1, "a pipeline is a mapping"),
        ("just words\n", 1, "a pipeline is a mapping"),
        ("a:\n" + "[" * 500, 2, "nested more than 16 deep"),
        (b"a: b\nc: \xff\n", 2, "byte 0xff is not UTF-8"),
        (b"a: b\nc: \x01\n", 2, "character U+0001 is not allowed"),
    ],
)
def test_text_that_is_no_pipeline_names_the_line(tmp_path: Path, text: str | bytes, line: int, words: str) -> None:
    error = error_of(tmp_path, text)
    assert error.where == f"{tmp_path}/pipeline.yaml:{line}"
    assert words in error.paragraph()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_an_empty_file_says_how_to_start(tmp_path: Path, text: str) -> None:
    error = error_of(tmp_path, text)
    assert error.paragraph() == f"{tmp_path}/pipeline.yaml: the file is empty. `builder init NAME` writes a pipeline to start from."


def test_a_missing_file_a_folder_and_a_huge_file_are_spec_errors(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SpecError, match=words):
            load_pipeline(path)
    assert "larger than 1 MiB" in error_of(tmp_path, b"#" * (1 << 20) + b"\n").what


def test_all_errors_of_a_file_come_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    error = error_of(tmp_path, "metadata: {name: Bad Name}\nengine:\n  max_batch_size: x\n  deviec: cpu\n")
    lines = error.what.splitlines()
    assert lines[0] == "5 errors"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 1", "line 1", "line 1", "line 3", "line 4"]
    assert "`metadata.owner` is missing" in error.what and "`target` is missing" in error.what


def test_words_that_yaml_1_1_reads_as_dates_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("metadata: {name: demo, owner: team, labels: {since: 2026-01-01}}\ntarget: {weights: model.gguf}\n")
    assert load_pipeline(path).spec.metadata.labels == {"since": "2026-01-01"}


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.encode())
    assert load_pipeline(path).spec.metadata.name == "demo"


def test_with_attention_sink_a_text_may_run_through_sixteen_contexts(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(HEAD + "engine: {max_seq_len: 64, kv_cache: {eviction: attention_sink}}\nserving: {max_tokens: 1000}\n")
    spec = load_pipeline(path).spec
    assert (spec.longest_prompt, spec.longest_answer) == (1023, 1000)
