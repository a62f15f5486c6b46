"""What `builder build` makes for TensorRT-LLM on a machine without it: everything up to the step that needs the GPU.

FOLDER/handover.json         what it was made of, and the next step
FOLDER/model_repository/     trtllm-llmapi: a whole version, checkpoints and arguments of LLM() inside
                             trtllm-engine: config.pbtxt of both engines' models
FOLDER/checkpoints/, build_engines.sh, launch.sh, host_stamp.py      trtllm-engine only
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from builder.compile.trtllm.checkpoints import ExportRecipe, export
from builder.compile.trtllm.scripts import BUILD_SCRIPT, LAUNCH_SCRIPT, REPOSITORY, STAMP_SCRIPT, build_script, launch_script
from builder.errors import RepositoryError
from builder.plan.context import PlanContext
from builder.plan.host import this_host
from builder.plan.make import gather
from builder.plan.report import check
from builder.plan.trtllm.flags import Role
from builder.repository import config_pbtxt
from builder.repository.ensemble import ModelNames
from builder.repository.files import link_tree, sync_folder, write_atomically
from builder.repository.llmapi import ARGUMENTS, write_arguments
from builder.repository.manifest import now, tool_versions
from builder.repository.publish import Release, publish
from builder.repository.tokenizer import tokenizer_texts
from builder.repository.trtllm_configs import EngineModels, engine_configs
from builder.spec.load import LoadedPipeline
from builder.weights import TokenizerFiles, open_checkpoint, open_tokenizer

SUMMARY = "handover.json"
STEPS = 4  # of an export, at least: read, load, quantise, write


class Progress(Protocol):
    def stage(self, title: str, steps: int) -> None: ...

    def advance(self, step: str) -> None: ...


@dataclass(frozen=True)
class Handover:
    """`checkpoints` maps a role to its fingerprint; `next_step` is the command that goes on, and where."""

    pipeline: str
    backend: str
    folder: str
    version: str  # of TensorRT-LLM
    checkpoints: Mapping[str, Mapping[str, Any]]
    models: tuple[str, ...]
    next_step: str
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
    recipes = _recipes(context)
    tokenizer = open_tokenizer(pipeline.spec.target.weights, pipeline.base)
    checkpoints = {role: _export(pipeline, role, recipe, cache, progress) for role, recipe in recipes.items()}
    described = {
        role: {**asdict(recipe), "bytes": _size(checkpoints[role]), "source": _source(pipeline, role)} for role, recipe in recipes.items()
    }
    name, trt = context.spec.metadata.name, context.spec.engine.trt
    made = Handover(
        pipeline=name,
        backend=context.spec.engine.chosen_backend,
        folder=str(folder),
        version=trt.version,
        checkpoints=described,
        models=tuple(_models(context)),
        next_step=_next_step(context, folder),
        tools=tool_versions(),
        created=now(),
    )
    try:
        _write(folder, context, checkpoints, tokenizer, made)
    except OSError as error:
        where = str(error.filename or folder)
        raise RepositoryError(
            f"cannot be written ({error.strerror or error})", where=where, mend="Free space or mend permissions"
        ) from error
    return made


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
    if context.spec.engine.chosen_backend == "trtllm-engine":
        return list(engine_configs(context))
    return list(ModelNames.of(context.spec.metadata.name).publish_order())


def _next_step(context: PlanContext, folder: Path) -> str:
    spec, trt, gpu = context.spec, context.spec.engine.trt, context.spec.engine.gpu
    kind = (gpu.built_on or gpu.name) if gpu else "a GPU"
    if spec.engine.chosen_backend == "trtllm-engine":
        return f"Copy {folder} to a host with {kind} and TensorRT-LLM {trt.version}, and run ./{BUILD_SCRIPT} there, then ./{LAUNCH_SCRIPT}"
    server = f"tritonserver --model-repository={folder / REPOSITORY}"
    return f"Copy {folder} to a host with {kind}, TensorRT-LLM {trt.version} and builder in Triton's Python, and run `{server}` there"


def _write(folder: Path, context: PlanContext, checkpoints: Mapping[Role, Path], tokenizer: TokenizerFiles, made: Handover) -> None:
    """Beside its place and renamed: readers see the whole old folder or the whole new one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        staged.chmod(0o755)
        if context.spec.engine.chosen_backend == "trtllm-engine":
            for role, source in checkpoints.items():
                link_tree(source, staged / "checkpoints" / role)
            _write_engine_models(staged, context)
        else:
            _publish(staged, context, checkpoints, tokenizer)
        write_atomically(staged / SUMMARY, json.dumps(made.to_json(), indent=2) + "\n")
        _replace(folder, staged)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write_engine_models(staged: Path, context: PlanContext) -> None:
    for model, config in engine_configs(context).items():
        (staged / REPOSITORY / model / "1").mkdir(parents=True)
        config_pbtxt.write(staged / REPOSITORY / model, config)
    names = EngineModels.of(context.spec.metadata.name).by_role()
    stamp = resources.files("builder.compile.trtllm").joinpath(STAMP_SCRIPT).read_text(encoding="utf-8")
    texts = {BUILD_SCRIPT: build_script(context, names), LAUNCH_SCRIPT: launch_script(context, names), STAMP_SCRIPT: stamp}
    for name, text in texts.items():
        (staged / name).write_text(text, encoding="utf-8")
        (staged / name).chmod(0o755)


def _publish(staged: Path, context: PlanContext, checkpoints: Mapping[Role, Path], tokenizer: TokenizerFiles) -> None:
    """A version like any other, whose decode model is made of tensorrt_llm.LLM. Not verified: that takes the GPU."""
    arguments = staged / ARGUMENTS
    arguments.mkdir()
    write_arguments(arguments, context)
    release = Release(
        pipeline=context.spec.metadata.name,
        spec=context.spec.model_dump(mode="json"),
        fingerprints={"tokenizer": tokenizer.fingerprint, **{role: folder.name for role, folder in checkpoints.items()}},
        tokenizer=tokenizer_texts(tokenizer),
        engines={**checkpoints, ARGUMENTS: arguments},
    )
    (staged / REPOSITORY).mkdir()
    publish(staged / REPOSITORY, release)
    shutil.rmtree(arguments)


def _replace(folder: Path, staged: Path) -> None:
    """A folder cannot be renamed over a full one: the old one steps aside first, and a kill between the two leaves it there."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staged.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
