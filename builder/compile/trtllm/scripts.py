"""The two shell scripts that finish a hand-over on a GPU host: compile the engines, start the server."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from builder.plan.context import PlanContext
from builder.plan.trtllm.backend import ENGINE_FOLDER
from builder.plan.trtllm.flags import Role, as_arguments, build_flags, roles
from builder.plan.trtllm.versions import ENGINE_LINES, line_of
from builder.spec.serving import FORWARDED_HEADERS

BUILD_SCRIPT, LAUNCH_SCRIPT, STAMP_SCRIPT = "build_engines.sh", "launch.sh", "host_stamp.py"
REPOSITORY = "model_repository"  # inside the hand-over folder
_HEAD = '#!/usr/bin/env bash\n# Written by `builder build`. {}\nset -euo pipefail\ncd "$(dirname "${{BASH_SOURCE[0]}}")"\n'


def engine_folder(model: str) -> str:
    """Where a model's engine lies, from the hand-over folder."""
    return f"{REPOSITORY}/{model}/1/{ENGINE_FOLDER}"


def build_script(context: PlanContext, models: Mapping[Role, str]) -> str:
    """trtllm-build for each model, into a folder beside its place and renamed: an interrupted build leaves no half engine."""
    version = context.spec.engine.trt.version
    text = _HEAD.format(f"Run it where TensorRT-LLM {version} is installed, on a GPU of the kind that serves.")
    text += (
        f'\nfound=$(python3 -c "import tensorrt_llm; print(tensorrt_llm.__version__)" | tail -n 1)\n'
        f'[[ $found == {line_of(version)}.* ]] || {{ echo "TensorRT-LLM {version} is needed, found $found" >&2; exit 1; }}\n'
    )
    for role in roles(context):
        folder = engine_folder(models[role])
        staged = f"{folder}.staged"
        folders = ["--checkpoint_dir", f"checkpoints/{role}", "--output_dir", staged]
        lines = _pairs([*folders, *as_arguments(build_flags(context, role))])
        text += f"\nrm -rf {staged}\nmkdir -p {staged}\ntrtllm-build \\\n    " + " \\\n    ".join(lines)
        text += f"\npython3 {STAMP_SCRIPT} write {staged}\nrm -rf {folder}\nmv {staged} {folder}\n"
    return text


def launch_script(context: PlanContext, models: Mapping[Role, str]) -> str:
    """tritonserver with the stated number of ranks. Leader mode: one process for each rank, the first one serves."""
    serving, trt = context.spec.serving, context.spec.engine.trt
    line = ENGINE_LINES.get(line_of(trt.version))
    container = f"the Triton container {trt.triton or line.triton}" if line else "Triton"
    text = _HEAD.format(f"Run it in {container}, after {BUILD_SCRIPT}.")
    folders = " ".join(engine_folder(models[role]) for role in roles(context))
    text += f"\npython3 {STAMP_SCRIPT} check {folders}\n"
    server = [
        "tritonserver",
        f"--model-repository={REPOSITORY}",
        f"--http-address={serving.host}",
        f"--grpc-address={serving.host}",
        f"--metrics-address={serving.host}",
        f"--http-port={serving.http_port}",
        f"--grpc-port={serving.grpc_port}",
        f"--metrics-port={serving.metrics_port}",
        f"--grpc-header-forward-pattern={FORWARDED_HEADERS}",
    ]
    engines = [f"--load-model={models[role]}" for role in roles(context)]
    # By name: left alone, the server takes the folders of flags and ledger beside the models for models, and ends.
    server += ["--model-control-mode=explicit", *engines, f"--load-model={context.spec.metadata.name}"]
    ranks = trt.target.world_size
    if trt.launch == "orchestrator":
        return text + "export TRTLLM_ORCHESTRATOR=1\nexec " + _lines(server) + "\n"
    if ranks == 1:
        return text + "exec " + _lines(server) + "\n"
    silent = ["--model-control-mode=explicit", *engines]
    silent += ["--allow-http=0", "--allow-grpc=0", "--allow-metrics=0", "--log-info=0"]
    others = [word for _ in range(ranks - 1) for word in (":", "-n", "1", "tritonserver", f"--model-repository={REPOSITORY}", *silent)]
    return text + "exec " + _lines(["mpirun", "--allow-run-as-root", "-n", "1", *server, *others]) + "\n"


def _pairs(words: list[str]) -> list[str]:
    """A flag and its value on one line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def _lines(words: list[str]) -> str:
    return " \\\n    ".join(shlex.quote(word) for word in words)
