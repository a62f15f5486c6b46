"""What `builder build` makes for TensorRT-LLM on a machine without it: everything up to the step that needs the GPU.

FOLDER/handover.json         what it was made of, and the next step
FOLDER/model_repository/     a whole version; trtllm-llmapi: checkpoints and arguments of LLM() inside
                             trtllm-engine: beside it config.pbtxt of both engines' models
FOLDER/checkpoints/, build_engines.sh, launch.sh, host_stamp.py      trtllm-engine only
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.compile.trtllm.checkpoints import ExportRecipe, export
from builder.compile.trtllm.scripts import BUILD_SCRIPT, LAUNCH_SCRIPT, REPOSITORY
from builder.errors import BuildError, RepositoryError
from builder.plan.context import PlanContext
from builder.plan.host import this_host
from builder.plan.make import gather
from builder.plan.report import check
from builder.plan.trtllm.flags import Role
from builder.progress import Progress
from builder.repository.calibrated import find_calibrated
from builder.repository.ensemble import ModelNames
from builder.repository.handover_folder import write_folder
from builder.repository.kept_engines import has_engines
from builder.repository.manifest import now, tool_versions
from builder.repository.trtllm_configs import engine_configs
from builder.spec.load import LoadedPipeline
from builder.spec.serving import FORWARDED_HEADERS
from builder.weights import open_checkpoint, open_tokenizer

TRTLLM_BUILD = "trtllm-build"
STDERR = 2  # the file descriptor
STEPS = 4  # of an export, at least: read, load, quantise, write


@dataclass(frozen=True)
class Handover:
    """`checkpoints` says how each was made; `next_step` is the command that goes on, and where."""

    pipeline: str
    backend: str
    folder: str
    version: str  # of TensorRT-LLM
    checkpoints: Mapping[Role, Mapping[str, Any]]
    models: tuple[str, ...]
    next_step: str
    engines_built_here: bool = False  # this is a host with trtllm-build
    tools: Mapping[str, str] = field(default_factory=dict)
    created: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def hand_over(pipeline: LoadedPipeline, folder: Path, cache: Path, progress: Progress) -> Handover:
    """Check the pipeline, export its checkpoints and write the folder; what was there before is replaced at the end.

    Raises CheckError (the plan said no), WeightsError, TokenizerError, BuildError, or RepositoryError when it cannot be written.
    """
    progress.stage("plan", 1)
    context = gather(pipeline, this_host())
    check(context).require()
    progress.advance("checked")
    exits = find_calibrated(pipeline, cache)
    recipes = _recipes(context)
    tokenizer = open_tokenizer(pipeline.spec.target.weights, pipeline.base)
    checkpoints = {role: _export(pipeline, role, recipe, cache, progress) for role, recipe in recipes.items()}
    described = {
        role: {**asdict(recipe), "bytes": _size(checkpoints[role]), "source": _source(pipeline, role)} for role, recipe in recipes.items()
    }
    name, trt = context.spec.metadata.name, context.spec.engine.trt
    here = context.spec.engine.chosen_backend == "trtllm-engine" and shutil.which(TRTLLM_BUILD) is not None
    made = Handover(
        pipeline=name,
        backend=context.spec.engine.chosen_backend,
        folder=str(folder),
        version=trt.version,
        checkpoints=described,
        models=tuple(_models(context)),
        next_step=_next_step(context, folder, here) + _then_calibrate(context),
        engines_built_here=here,
        tools=tool_versions(),
        created=now(),
    )
    try:
        write_folder(folder, context, checkpoints, tokenizer, made.to_json(), exits)
    except OSError as error:
        where = str(error.filename or folder)
        raise RepositoryError(
            f"cannot be written ({error.strerror or error})", where=where, mend="Free space or mend permissions"
        ) from error
    if here and not has_engines(folder, context):
        progress.stage("engines", 1)
        _build_engines(folder)
        progress.advance("compiled")
    return made


def _build_engines(folder: Path) -> None:
    """Run the script that other hosts get. What trtllm-build prints goes to stderr: stdout holds the result alone."""
    done = subprocess.run([str(folder.absolute() / BUILD_SCRIPT)], stdout=STDERR, check=False)
    if done.returncode:
        what = f"trtllm-build failed (exit code {done.returncode}), see above"
        raise BuildError(what, where=str(folder / BUILD_SCRIPT), mend="Mend what it says and run the script, or build again")


def _recipes(context: PlanContext) -> dict[Role, ExportRecipe]:
    spec, trt = context.spec, context.spec.engine.trt
    layout, logits = ("trtllm" if spec.engine.chosen_backend == "trtllm-engine" else "hf"), trt.logits_dtype

    def recipe(role: Role, **options: Any) -> ExportRecipe:
        split = trt.model(role)
        return ExportRecipe(
            layout=layout,  # type: ignore[arg-type]  # one of the two names above
            logits_dtype=logits,
            tensor_parallel=split.tensor_parallel,
            pipeline_parallel=split.pipeline_parallel,
            **options,
        )

    recipes: dict[Role, ExportRecipe] = {"target": recipe("target", format="bfloat16")}
    if (draft := spec.used_draft) is not None:
        layers = None if draft.layers == "all" else draft.layers
        recipes["draft"] = recipe("draft", format="int4_awq", layers=layers, group_size=draft.quantization.group_size)
    return recipes


def _export(pipeline: LoadedPipeline, role: Role, recipe: ExportRecipe, cache: Path, progress: Progress) -> Path:
    source = _source(pipeline, role)
    progress.stage(f"{role} checkpoint, {recipe.format}", STEPS)
    checkpoint, tokenizer = open_checkpoint(source, pipeline.base), open_tokenizer(source, pipeline.base)
    return export(cache, role, recipe, checkpoint, tokenizer, progress.advance)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _source(pipeline: LoadedPipeline, role: Role) -> str:
    draft = pipeline.spec.used_draft
    return draft.weights if role == "draft" and draft is not None and not draft.from_target else pipeline.spec.target.weights


def _models(context: PlanContext) -> list[str]:
    engines = engine_configs(context) if context.spec.engine.chosen_backend == "trtllm-engine" else {}
    return [*engines, *ModelNames.of(context.spec.metadata.name).publish_order()]


def _then_calibrate(context: PlanContext) -> str:
    """Engines are calibrated where they are served, so a first version has none."""
    if context.exits is None or context.exits.record is not None:
        return ""
    return f"; then run `{context.exits.calibrate}` here and build again: until then nothing leaves early"


def _next_step(context: PlanContext, folder: Path, here: bool) -> str:
    spec, trt, gpu = context.spec, context.spec.engine.trt, context.spec.engine.gpu
    kind = (gpu.built_on or gpu.name) if gpu else "a GPU"
    copy = f"Copy {folder} to a host with {kind}, TensorRT-LLM {trt.version} and builder in Triton's Python"
    if here:
        return f"Run {folder / LAUNCH_SCRIPT}"
    if spec.engine.chosen_backend == "trtllm-engine":
        return f"{copy}, and run ./{BUILD_SCRIPT} there, then ./{LAUNCH_SCRIPT}"
    server = f"tritonserver --model-repository={folder / REPOSITORY} --model-control-mode=explicit --load-model={spec.metadata.name}"
    return f"{copy}, and run `{server} --grpc-header-forward-pattern='{FORWARDED_HEADERS}'` there"
