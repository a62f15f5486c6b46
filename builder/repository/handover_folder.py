"""The hand-over folder itself: written beside its place, then renamed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from builder.compile.trtllm.scripts import BUILD_SCRIPT, LAUNCH_SCRIPT, REPOSITORY, STAMP_SCRIPT, build_script, launch_script
from builder.files import link_tree, sync_folder, write_atomically
from builder.plan.context import PlanContext
from builder.plan.trtllm.flags import Role
from builder.repository import config_pbtxt
from builder.repository.calibrated import CalibratedExits
from builder.repository.handed_over import SUMMARY
from builder.repository.kept_engines import keep_engines
from builder.repository.llmapi import ARGUMENTS, write_arguments
from builder.repository.pair import PAIR, write_pair
from builder.repository.publish import Release, publish
from builder.repository.tokenizer import tokenizer_texts
from builder.repository.trtllm_configs import EngineModels, engine_configs
from builder.weights import TokenizerFiles


def write_folder(
    folder: Path,
    context: PlanContext,
    checkpoints: Mapping[Role, Path],
    tokenizer: TokenizerFiles,
    summary: Mapping[str, Any],
    exits: CalibratedExits | None = None,
) -> None:
    """Beside its place and renamed: readers see the whole old folder or the whole new one."""
    release = _release(context, checkpoints, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        staged.chmod(0o755)
        if context.spec.engine.chosen_backend == "trtllm-engine":
            for role, source in checkpoints.items():
                link_tree(source, staged / "checkpoints" / role)
            _write_engine_models(staged, context)
            _publish(staged, context, exits.join(release) if exits else release, PAIR, write_pair)
            keep_engines(folder, staged, context)
        else:
            models = {str(role): source for role, source in checkpoints.items()}
            _publish(staged, context, replace(release, engines=models), ARGUMENTS, write_arguments)
        write_atomically(staged / SUMMARY, json.dumps(summary, indent=2) + "\n")
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


def _release(context: PlanContext, checkpoints: Mapping[Role, Path], tokenizer: TokenizerFiles) -> Release:
    """Of everything but the folders that its decode model goes by."""
    return Release(
        pipeline=context.spec.metadata.name,
        spec=context.spec.model_dump(mode="json"),
        fingerprints={"tokenizer": tokenizer.fingerprint, **{role: folder.name for role, folder in checkpoints.items()}},
        tokenizer=tokenizer_texts(tokenizer),
        engines={},
    )


def _publish(staged: Path, context: PlanContext, release: Release, name: str, write: Callable[[Path, PlanContext], None]) -> None:
    """A version like any other, whose decode model goes by what `write` puts into its folder `name` too. Not verified: that takes the
    GPU."""
    settings = staged / name
    settings.mkdir()
    write(settings, context)
    (staged / REPOSITORY).mkdir(exist_ok=True)
    publish(staged / REPOSITORY, replace(release, engines={name: settings, **release.engines}))
    shutil.rmtree(settings)


def _replace(folder: Path, staged: Path) -> None:
    """A folder cannot be renamed over a full one: the old one steps aside first, and a kill between the two leaves it there."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staged.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
