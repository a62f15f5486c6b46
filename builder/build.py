"""The whole way: pipeline.yaml -> plan -> compiled engines -> staged version -> published version."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from builder.align.align import align
from builder.align.drift import changed_parts, refuse_old_measurements, was_aligned
from builder.align.recipe import AlignmentOptions, AlignmentRecipe, read_result
from builder.align.record import record_file
from builder.align.staging import Parts
from builder.align.vocabulary import cut_vocabulary
from builder.bench.acceptance import PROMPTS, measure_acceptance
from builder.compile.cache import cached_folder, default_cache
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.library import folder_name, source_fingerprint
from builder.engine_recipe import EngineRecipe, compile_engines, engine_recipes
from builder.errors import CheckError
from builder.plan.make import make_plan
from builder.progress import NoProgress, Progress
from builder.quality.gates import SKIPPED
from builder.quality.staged import verify_staged
from builder.repository.calibrated import find_calibrated
from builder.repository.engine import DRAFT, KERNELS, TARGET
from builder.repository.live import serving_version
from builder.repository.publish import Release, find_published, publish, resume
from builder.repository.server_group import Server
from builder.repository.tokenizer import tokenizer_texts
from builder.repository.versions import Version
from builder.serve.servers import running_servers
from builder.spec.load import LoadedPipeline, load_pipeline
from builder.weights import TokenizerFiles, open_tokenizer


@dataclass(frozen=True)
class BuildResult:
    """`engines` maps target and draft to what was made; `results` is what the build measured (see the manifest)."""

    pipeline: str
    version: int
    cached: bool
    seconds: float
    engines: Mapping[str, Mapping[str, Any]]
    results: Mapping[str, Any]
    live: int  # the version that serves: another one where this was rolled back
    changed: str | None = None  # parts that are others than in the version before, in words: what was tuned to them is made anew

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "live": self.live,
            "cached": self.cached,
            "seconds": round(self.seconds, 2),
            "changed": self.changed,
            "engines": dict(self.engines),
            "results": dict(self.results),
        }


def build_pipeline(
    path: str | Path,
    repository: Path,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    alignment: AlignmentOptions | None = None,
    verify: bool = True,
    promote: bool = True,
    servers: Sequence[Server] = (),
) -> BuildResult:
    """Build the pipeline and publish it as a new version, unless the newest version was made of exactly the same.

    `alignment` takes the place of what wanted_alignment says. Without `verify` the version goes live unproven, and its manifest
    says so. It goes live in `servers`, and in those that have their note in the repository; without `promote` only if nothing is live.
    Raises SpecError, WeightsError, TokenizerError, CheckError (the plan, the quality gate or a server said no), BuildError or
    RepositoryError; whatever is raised, no part of a version is left behind.
    """
    started, progress, cache = clock(), progress or NoProgress(), cache or default_cache()
    pipeline = load_pipeline(path)
    progress.stage("plan", 1)
    if pipeline.spec.engine.chosen_backend != "torch_aot":
        what = f"engine.backend {pipeline.spec.engine.backend} is not built or served on this machine"
        raise CheckError(what, where=str(path), mend="`builder build` hands it over to a GPU host; here, set backend to torch_aot")
    make_plan(pipeline).require()
    progress.advance("checked")
    tokenizer = open_tokenizer(pipeline.spec.target.weights, pipeline.base)
    recipes = engine_recipes(pipeline, tokenizer, alignment)
    release, exits = _release(pipeline, tokenizer, recipes, cache), find_calibrated(pipeline, cache)
    release = exits.join(release) if exits else release
    version = find_published(repository, release.pipeline, release.fingerprint)
    cached, changed = version is not None, changed_parts(repository, release)
    if version is None:
        refuse_old_measurements(repository, release, pipeline.path)
        compile_engines(recipes, cache, progress)
        draft = recipes[-1]
        if draft.alignment is not None:
            stale = changed if was_aligned(repository, release) else None
            _align(pipeline, release, draft.uncut, draft.alignment, cache, progress, stale)
        if draft.counted is not None:
            progress.stage(f"the draft's {draft.vocabulary} most frequent tokens", 1)
            parts = _parts(release, draft, cache)
            whole = cache / draft.uncut.folder_name
            cut = partial(cut_vocabulary, whole, draft.fingerprint, draft.vocabulary or 0, draft.counted, parts, pipeline.spec)
            cached_folder(cache, draft.folder_name, cut)
        if draft.alignment is not None:
            release = replace(release, results={**release.results, "alignment": read_result(release.engines[DRAFT])})
        check = _check(pipeline, repository, progress, verify=verify)
        everywhere = [*servers, *running_servers(repository, release.pipeline)]
        version, cached = publish(repository, release, check, servers=everywhere, keep=pipeline.spec.versions.keep, promote=promote)
    if cached and promote:
        live = resume(version, [*servers, *running_servers(repository, release.pipeline)])
    else:
        live = serving_version(repository, release.pipeline).number
    described = _describe(version, recipes)
    return BuildResult(release.pipeline, version.number, cached, clock() - started, described, version.manifest.results, live, changed)


def compile_target(pipeline: LoadedPipeline, cache: Path, progress: Progress) -> tuple[Parts, Mapping[str, str]]:
    """The target's engine and the kernels in the cache, and the fingerprints of weights, tokenizer and engine."""
    tokenizer = open_tokenizer(pipeline.spec.target.weights, pipeline.base)
    recipes = engine_recipes(pipeline, tokenizer, None)[:1]
    release = _release(pipeline, tokenizer, recipes, cache)
    compile_engines(recipes, cache, progress)
    target = release.engines[TARGET]
    return Parts(target, target, release.engines[KERNELS], release.tokenizer), release.fingerprints


def _release(pipeline: LoadedPipeline, tokenizer: TokenizerFiles, recipes: list[EngineRecipe], cache: Path) -> Release:
    kernels = source_fingerprint()
    return Release(
        pipeline=pipeline.spec.metadata.name,
        spec=pipeline.spec.model_dump(mode="json"),
        fingerprints={
            "tokenizer": tokenizer.fingerprint,
            "kernels": kernels,
            **{f"{recipe.role}_weights": recipe.checkpoint.fingerprint for recipe in recipes},
            **{f"{recipe.role}_engine": recipe.fingerprint for recipe in recipes},
        },
        tokenizer=tokenizer_texts(tokenizer),
        engines={KERNELS: cache / folder_name(kernels), **{recipe.role: cache / recipe.folder_name for recipe in recipes}},
    )


def _align(
    pipeline: LoadedPipeline,
    release: Release,
    draft: EngineRecipe,
    alignment: AlignmentRecipe,
    cache: Path,
    progress: Progress,
    stale: str | None,
) -> None:
    """`stale`: what changed since the newest version was aligned, in words. An interrupted alignment leaves its standing beside the
    cache's folders, and no folder."""
    if stale:
        record = record_file(pipeline.path)
        asked = f", as {record.name} says (`builder align` to ask otherwise)" if record.is_file() else ""
        progress.stage(f"{stale} changed: aligning anew{asked}", 1)
    parts = _parts(release, draft, cache)
    standing = cache / f"alignment-{draft.fingerprint[:16]}.safetensors"

    def fill(folder: Path) -> None:
        align(folder, draft.fingerprint, alignment, parts, pipeline.spec, standing, progress)

    cached_folder(cache, draft.folder_name, fill)


def _parts(release: Release, draft: EngineRecipe, cache: Path) -> Parts:
    return Parts(release.engines[TARGET], cache / draft.unaligned.folder_name, release.engines[KERNELS], release.tokenizer)


def _check(pipeline: LoadedPipeline, repository: Path, progress: Progress, *, verify: bool) -> Callable[[Path], Mapping[str, Any]]:
    """What runs on the staged version before anything is visible: it must load, decode, and pass the quality gate."""

    def check(folder: Path) -> Mapping[str, Any]:
        progress.stage("first answers", len(PROMPTS))
        results: dict[str, Any] = {"acceptance": measure_acceptance(folder, pipeline.spec, progress.advance).to_json()}
        results["quality"] = verify_staged(folder, pipeline, repository, progress) if verify else {"verdict": SKIPPED}
        return results

    return check


def _describe(version: Version, recipes: list[EngineRecipe]) -> dict[str, dict[str, Any]]:
    described = {}
    for recipe in recipes:
        folder = version.decode_folder / recipe.role
        info = read_info(folder)
        described[recipe.role] = {
            "weights": info.weights,
            "source": info.source,
            "layers": info.model.num_layers,
            "bytes": sum(path.stat().st_size for path in folder.iterdir()),
            "fingerprint": info.fingerprint,
        }
        if info.errors:
            described[recipe.role]["mean_quantisation_error"] = round(sum(info.errors.values()) / len(info.errors), 4)
    return described
