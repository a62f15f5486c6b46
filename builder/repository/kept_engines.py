"""Engines compiled on this host, which a new hand-over takes along where it would compile the same: that takes hours for large models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.compile.trtllm.scripts import BUILD_SCRIPT, REPOSITORY, engine_folder
from builder.files import link_tree
from builder.plan.context import PlanContext
from builder.plan.trtllm.flags import roles
from builder.repository.trtllm_configs import EngineModels
from builder.repository.versions import versions


def keep_engines(folder: Path, staged: Path, context: PlanContext) -> None:
    """Link the engines of `folder` into `staged`, where both are made of the same checkpoints by the same script."""
    made_of = _made_of(folder, context)
    if made_of is None or made_of != _made_of(staged, context):
        return
    for engine in _engines(context):
        if (folder / engine).is_dir():
            link_tree(folder / engine, staged / engine)


def has_engines(folder: Path, context: PlanContext) -> bool:
    return all((folder / engine).is_dir() for engine in _engines(context))


def _engines(context: PlanContext) -> list[str]:
    names = EngineModels.of(context.spec.metadata.name).by_role()
    return [engine_folder(names[role]) for role in roles(context)]


def _made_of(folder: Path, context: PlanContext) -> tuple[str, Mapping[str, str]] | None:
    """None where there is no whole hand-over."""
    found, script = versions(folder / REPOSITORY, context.spec.metadata.name), folder / BUILD_SCRIPT
    if not found or not script.is_file():
        return None
    fingerprints = found[-1].manifest.fingerprints
    return script.read_text(encoding="utf-8"), {role: fingerprints[role] for role in roles(context) if role in fingerprints}
