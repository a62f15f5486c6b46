"""What is handed to a GPU host: flags, scripts, configurations and a folder that is whole or not there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import NoProgress, build_pipeline
from builder.compile.trtllm import checkpoints
from builder.compile.trtllm.scripts import build_script, launch_script
from builder.errors import BuildError, CheckError
from builder.plan.context import PlanContext
from builder.plan.trtllm.flags import as_arguments, build_flags
from builder.repository import config_pbtxt
from builder.repository.handed_over import handover_folder, require_served_here
from builder.repository.handover import hand_over
from builder.repository.trtllm_configs import EngineModels, engine_configs
from builder.repository.versions import newest
from builder.weights import open_checkpoint

MODELS = EngineModels.of("tiny").by_role()
MakePlanContext = Callable[..., PlanContext]


def test_the_target_is_built_with_room_for_drafts_and_the_draft_with_the_same_limits(make_plan_context: MakePlanContext) -> None:
    context = make_plan_context()
    target, draft = build_flags(context, "target"), build_flags(context, "draft")
    assert target["speculative_decoding_mode"] == "draft_tokens_external" and target["max_draft_len"] == 3
    assert "max_draft_len" not in draft
    assert target["use_paged_context_fmha"] == draft["use_paged_context_fmha"] == "enable"
    assert [target[name] for name in ("max_input_len", "max_seq_len")] == [draft[name] for name in ("max_input_len", "max_seq_len")]


def test_without_a_draft_the_target_is_built_plainly(make_plan_context: MakePlanContext) -> None:
    context = make_plan_context(draft=None, speculation={"proposer": "none"})
    assert "max_draft_len" not in build_flags(context, "target")
    assert "checkpoints/draft" not in build_script(context, MODELS)


def test_a_switch_has_no_value_on_the_command_line() -> None:
    flags = {"gather_generation_logits": True, "gather_context_logits": False, "context_fmha": True, "max_draft_len": 3}
    assert as_arguments(flags) == ["--gather_generation_logits", "--context_fmha", "enable", "--max_draft_len", "3"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"trt": {"draft_logits": True}},
        {"trt": {"target": {"tensor_parallel": 2}, "draft": {"tensor_parallel": 2}}},
        {"trt": {"launch": "orchestrator", "target": {"tensor_parallel": 2}}},
    ],
)
def test_both_scripts_are_sound_bash(make_plan_context: MakePlanContext, change: dict[str, Any]) -> None:
    context = make_plan_context(**change)
    for text in (build_script(context, MODELS), launch_script(context, MODELS)):
        assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


def test_leader_mode_starts_one_server_for_each_rank(make_plan_context: MakePlanContext) -> None:
    two = {"tensor_parallel": 2}
    text = launch_script(make_plan_context(trt={"target": two, "draft": two}), MODELS)
    assert text.count("-n \\\n    1 \\\n    tritonserver") == 2 and "mpirun" in text
    assert text.count("--allow-http=0") == 1


@pytest.mark.parametrize("trt", [{}, {"target": {"tensor_parallel": 2}, "draft": {"tensor_parallel": 2}}])
def test_the_server_loads_both_engines_and_the_pipeline_by_name(make_plan_context: MakePlanContext, trt: dict[str, Any]) -> None:
    """Without names tritonserver takes every folder of the repository for a model, those of flags and ledger too, and ends."""
    first, *others = launch_script(make_plan_context(trt=trt), MODELS).split("    tritonserver" if trt else "exec tritonserver")[1:]
    assert "--model-control-mode=explicit" in first
    loaded = [re.findall(r"--load-model=(\S+)", text) for text in (first, *others)]
    assert loaded == [["tiny_target", "tiny_draft", "tiny"], *[["tiny_target", "tiny_draft"]] * len(others)]


def test_orchestrator_mode_starts_one_server(make_plan_context: MakePlanContext) -> None:
    text = launch_script(make_plan_context(trt={"launch": "orchestrator", "target": {"tensor_parallel": 2}}), MODELS)
    assert text.count("tritonserver") == 1 and "TRTLLM_ORCHESTRATOR=1" in text and "mpirun" not in text


def test_the_build_script_leaves_no_half_engine_when_a_build_fails(make_plan_context: MakePlanContext, tmp_path: Path) -> None:
    """Run with stand-ins: trtllm-build writes a file and fails for the draft."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    build = '#!/bin/bash\nwhile [[ $1 != --output_dir ]]; do shift; done\ntouch "$2/rank0.engine"\n[[ $2 != *draft* ]]\n'
    for name, text in {"trtllm-build": build, "python3": "#!/bin/bash\necho 1.2.1\n"}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    script = tmp_path / "build_engines.sh"
    script.write_text(build_script(make_plan_context(), MODELS))
    done = subprocess.run(["bash", str(script)], env={"PATH": f"{bin_folder}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode != 0
    engines = {role: tmp_path / "model_repository" / model / "1" / "engine" for role, model in MODELS.items()}
    assert (engines["target"] / "rank0.engine").is_file()
    assert not engines["draft"].exists()


def test_the_build_script_refuses_another_line_of_tensorrt_llm(make_plan_context: MakePlanContext, tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/bash\necho 1.3.0\n")
    (tmp_path / "python3").chmod(0o755)
    script = tmp_path / "build_engines.sh"
    script.write_text(build_script(make_plan_context(), MODELS))
    done = subprocess.run(["bash", str(script)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1 and "TensorRT-LLM 1.2.1 is needed, found 1.3.0" in done.stderr


def test_configurations_read_back_and_agree_with_the_spec(make_plan_context: MakePlanContext) -> None:
    context = make_plan_context()
    configs = engine_configs(context)
    assert set(configs) == {"tiny_target", "tiny_draft"}
    for name, config in configs.items():
        text = config_pbtxt.to_text(config)
        assert config_pbtxt.parse(text) == config
        assert "${" not in text
        assert config.model_transaction_policy.decoupled and config.max_batch_size == 4
        assert config.parameters["gpt_model_path"].string_value == f"model_repository/{name}/1/engine"
    target = {tensor.name for tensor in configs["tiny_target"].input}
    assert "draft_input_ids" in target
    assert "draft_input_ids" not in {tensor.name for tensor in configs["tiny_draft"].input}


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "TYPE_FP32"), ("float16", "TYPE_FP16")])
def test_logits_have_one_type_in_flags_and_configurations(make_plan_context: MakePlanContext, dtype: str, kind: str) -> None:
    context = make_plan_context(trt={"logits_dtype": dtype})
    assert build_flags(context, "target")["logits_dtype"] == build_flags(context, "draft")["logits_dtype"] == dtype
    for config in engine_configs(context).values():
        logits = next(tensor for tensor in config.output if tensor.name == "generation_logits")
        assert f"data_type: {kind}" in str(logits)


def test_who_would_serve_a_pipeline_here_is_told_what_serves_it_where(write_pipeline: Any, exported: list[Any], tmp_path: Path) -> None:
    pipeline, repository = write_pipeline(), tmp_path / "model_repository"
    with pytest.raises(CheckError, match="on its GPU host") as raised:
        require_served_here(repository, pipeline.spec)
    assert "builder build" in (raised.value.mend or "")
    hand_over(pipeline, handover_folder(repository, "tiny"), tmp_path / "cache", NoProgress())
    with pytest.raises(CheckError) as raised:
        require_served_here(repository, pipeline.spec)
    assert "./launch.sh" in (raised.value.mend or "")
    require_served_here(handover_folder(repository, "tiny") / "model_repository", pipeline.spec)


def test_an_engine_hand_over_holds_all_that_the_scripts_name(write_pipeline: Any, exported: list[Any], tmp_path: Path) -> None:
    made = hand_over(write_pipeline(), tmp_path / "out", tmp_path / "cache", NoProgress())
    folder = tmp_path / "out"
    for name in ("build_engines.sh", "launch.sh", "host_stamp.py", "handover.json", "checkpoints/target", "checkpoints/draft"):
        assert (folder / name).exists(), name
    assert json.loads((folder / "handover.json").read_text()) == json.loads(json.dumps(made.to_json()))
    assert [recipe.format for recipe in exported] == ["bfloat16", "int4_awq"]
    assert exported[1].layers == 1 and exported[1].group_size == 128
    assert "L4" in made.next_step and "1.2.1" in made.next_step and "build_engines.sh" in made.next_step


@pytest.mark.parametrize("works", [True, False])
def test_a_host_with_trtllm_build_compiles_the_engines_itself(
    write_pipeline: Any, exported: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """With stand-ins for the host's programs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    build = '#!/bin/bash\nwhile [[ $1 != --output_dir ]]; do shift; done\ntouch "$2/rank0.engine"\n'
    for name, text in {"trtllm-build": build if works else "#!/bin/bash\nexit 1\n", "python3": "#!/bin/bash\necho 1.2.1\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    if not works:
        with pytest.raises(BuildError, match="trtllm-build failed"):
            hand_over(write_pipeline(), tmp_path / "out", tmp_path / "cache", NoProgress())
        return
    made = hand_over(write_pipeline(), tmp_path / "out", tmp_path / "cache", NoProgress())
    assert made.engines_built_here and "launch.sh" in made.next_step
    for model in MODELS.values():
        assert (tmp_path / "out" / "model_repository" / model / "1" / "engine" / "rank0.engine").is_file()


def test_engines_compiled_here_are_taken_along_until_what_they_are_made_of_changes(
    write_pipeline: Any, exported: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for the host's programs; the first writes a line for each engine."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    build = f'#!/bin/bash\necho x >> {log}\nwhile [[ $1 != --output_dir ]]; do shift; done\ntouch "$2/rank0.engine"\n'
    for name, text in {"trtllm-build": build, "python3": "#!/bin/bash\necho 1.2.1\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    compiled = []
    for sections in ({}, {"serving": {"grpc_port": 9001}}, {"engine": {"max_seq_len": 128}}):
        hand_over(write_pipeline(**sections), tmp_path / "out", tmp_path / "cache", NoProgress())
        compiled.append(len(log.read_text().split()))
        for model in MODELS.values():
            assert (tmp_path / "out" / "model_repository" / model / "1" / "engine" / "rank0.engine").is_file()
    assert compiled == [2, 2, 4]


def test_an_llmapi_hand_over_is_a_whole_version(write_pipeline: Any, exported: list[Any], tmp_path: Path) -> None:
    pipeline = write_pipeline(engine={"backend": "trtllm-llmapi"}, trt={"version": "1.3.0"})
    hand_over(pipeline, tmp_path / "out", tmp_path / "cache", NoProgress())
    version = newest(tmp_path / "out" / "model_repository", "tiny")
    version.manifest.check(version.folders)
    arguments = yaml.safe_load((version.decode_folder / "llm" / "model.yaml").read_text())
    assert arguments["speculative_config"] == {"decoding_type": "Draft_Target", "max_draft_len": 3, "speculative_model": "draft"}
    assert "speculative_config" not in yaml.safe_load((version.decode_folder / "llm" / "plain.yaml").read_text())
    assert {recipe.layout for recipe in exported} == {"hf"}


def test_a_second_hand_over_replaces_the_first_even_after_a_kill(write_pipeline: Any, exported: list[Any], tmp_path: Path) -> None:
    out, pipeline = tmp_path / "out", write_pipeline()
    hand_over(pipeline, out, tmp_path / "cache", NoProgress())
    (out / "stray").touch()
    shutil.copytree(out, tmp_path / ".out.old")  # what a kill between the two renames leaves
    hand_over(pipeline, out, tmp_path / "cache", NoProgress())
    assert not (out / "stray").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_a_pipeline_that_the_plan_refuses_is_not_handed_over(write_pipeline: Any, exported: list[Any], tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="proposer-supported"):
        hand_over(write_pipeline(speculation={"proposer": "ngram"}, draft=None), tmp_path / "out", tmp_path / "cache", NoProgress())
    assert exported == [] and not (tmp_path / "out").exists()


def test_the_cpu_build_refuses_a_gpu_backend(write_pipeline: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="not built or served on this machine"):
        build_pipeline(write_pipeline().path, tmp_path / "repository", cache=tmp_path / "cache")


def test_without_modelopt_the_mend_is_named(write_pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\necho 'No module named modelopt' >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv(checkpoints.PYTHON, str(python))
    with pytest.raises(BuildError, match="make trtllm"):
        hand_over(write_pipeline(), tmp_path / "out", tmp_path / "cache", NoProgress())
    assert not (tmp_path / "out").exists()


def test_a_failing_export_says_why(write_pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho \'{"step": "loaded"}\'\necho "in_features 96 is no multiple of 128" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setenv(checkpoints.PYTHON, str(python))
    with pytest.raises(BuildError, match="no multiple of 128"):
        hand_over(write_pipeline(), tmp_path / "out", tmp_path / "cache", NoProgress())
    assert [path for path in (tmp_path / "cache").iterdir() if "export" in path.name or path.name.startswith(".")] == []


def test_a_written_folder_reads_back_as_the_same_model(tiny_llama: Path, tmp_path: Path) -> None:
    from builder.weights import open_tokenizer
    from builder.weights.hf_folder import write_hf_folder

    original, tokenizer = open_checkpoint(str(tiny_llama), tmp_path), open_tokenizer(str(tiny_llama), tmp_path)
    write_hf_folder(tmp_path, original, tokenizer)
    again = open_checkpoint(str(tmp_path), tmp_path)
    assert again.config == original.config
    assert all((again.tensor(name) == original.tensor(name)).all() for name in original.names())
    assert open_tokenizer(str(tmp_path), tmp_path).tokenizer_json == tokenizer.tokenizer_json


def test_a_depth_cut_holds_its_layers_and_no_others(tiny_llama: Path, tmp_path: Path) -> None:
    from builder.weights import open_tokenizer
    from builder.weights.hf_folder import write_hf_folder

    original = open_checkpoint(str(tiny_llama), tmp_path)
    write_hf_folder(tmp_path, original, open_tokenizer(str(tiny_llama), tmp_path), layers=1)
    cut = open_checkpoint(str(tmp_path), tmp_path)
    assert cut.config.num_layers == 1
    assert {name for name in original.names() if not name.startswith("model.layers.1.")} == set(cut.names())
