"""`builder calibrate`, the whole way: target engine -> exit heads -> thresholds -> the record beside pipeline.yaml that builds go by."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from builder.build import compile_target
from builder.compile.cache import cached_folder, default_cache
from builder.errors import CheckError
from builder.exits.calibrate import Limits, make_calibration, make_heads
from builder.exits.guarantee import Bound
from builder.exits.recipe import CalibrationOptions, HeadsRecipe
from builder.exits.result import CalibrationResult
from builder.plan.calibration import CalibrationRecord, made_for, record_file, write_calibration
from builder.progress import NoProgress, Progress
from builder.repository.exits import read_calibration_file
from builder.spec.load import load_pipeline
from builder.weights import open_checkpoint


def calibrate_pipeline(
    path: Path,
    options: CalibrationOptions | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CalibrationResult:
    """Train and calibrate early exit for the pipeline's target, whatever early_exit.mode says; `options` take the place of its own.

    Heads are made once for the same target, text and options; other bounds are then a matter of seconds. Raises SpecError, WeightsError,
    TokenizerError, CheckError (layers the model has not), BuildError or EngineError.
    """
    began, progress, cache = clock(), progress or NoProgress(), cache or default_cache()
    loaded = load_pipeline(path)
    spec = loaded.spec
    options = options or CalibrationOptions.of(spec.early_exit.calibration, loaded.base)
    depth = open_checkpoint(spec.target.weights, loaded.base).config.num_layers
    layers = spec.early_exit.exit_layers(depth)
    if layers[-1] >= depth:
        what = f"early_exit.layers has {layers[-1]}, the model {depth} layers"
        raise CheckError(what, where=str(path), mend=f"Use layers below {depth}")
    parts, prints = compile_target(loaded, cache, progress)
    recipe = HeadsRecipe(options, layers, prints["target_engine"], prints["tokenizer"], options.prompts())
    exits, quality = spec.early_exit, spec.quality
    bound = Bound(quality.max_disagreement, quality.confidence, exits.max_pending, exits.protected_tokens)
    keep_all = exits.layers != "auto"  # who names layers means them
    fingerprint = recipe.calibrated(bound, keep_all=keep_all)
    name = f"exits-{fingerprint[:16]}"
    cached = (cache / name).is_dir()
    work = cache / f"exit-work-{recipe.fingerprint[:16]}"
    heads = cached_folder(
        cache, recipe.folder_name, lambda folder: make_heads(folder, recipe, parts, spec, work, progress, limits=limits, clock=clock)
    )
    make = partial(make_calibration, heads, recipe=recipe, target=parts.target, bound=bound, keep_all=keep_all)
    folder = cached_folder(cache, name, make)
    found = read_calibration_file(folder)
    fits = made_for(spec, prints["target_weights"], prints["tokenizer"], depth)
    bounded = any(entry["threshold"] is not None for entry in found["layers"])
    write_calibration(path, CalibrationRecord(name, fingerprint, fits, bounded, found["guarantee"]))
    return CalibrationResult(spec.metadata.name, record_file(path), found, cached, clock() - began)
