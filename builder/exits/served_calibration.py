"""`builder calibrate` for trtllm-engine: the two served engines -> the draft's threshold -> the record beside pipeline.yaml."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from builder.compile.cache import cached_folder, default_cache
from builder.decoding.exits.rule import Answers
from builder.errors import CheckError
from builder.exits.draft_guarantee import DraftLayers, calibrate_draft
from builder.exits.guarantee import Bound
from builder.exits.passages import Part
from builder.exits.recipe import CalibrationOptions, digest
from builder.exits.result import CalibrationResult
from builder.exits.served import ServedEngines
from builder.exits.served_answers import Reader
from builder.plan.calibration import CalibrationRecord, record_file, wanted_engine_calibration, write_calibration
from builder.plan.context import PlanContext
from builder.plan.host import this_host
from builder.plan.make import gather
from builder.plan.memory import draft_read_bytes, target_read_bytes
from builder.plan.trtllm.exit_rules import exit_is_the_draft
from builder.progress import NoProgress, Progress
from builder.repository.engine_client import Connection, EngineClient
from builder.repository.exits import CALIBRATION_FILE
from builder.repository.pair import grpc_address
from builder.repository.trtllm_configs import EngineModels
from builder.runtime.engine_model import EngineModel
from builder.spec.load import LoadedPipeline, load_pipeline
from builder.text import Tokenizer
from builder.weights import open_tokenizer

Engines = tuple[EngineModel, EngineModel]  # target and draft


@asynccontextmanager
async def connected(address: str, pipeline: str) -> AsyncIterator[Engines]:
    """The engines of a pipeline in the server at `address`."""
    server, names = Connection(address), EngineModels.of(pipeline)
    try:
        yield EngineClient(server, names.target), EngineClient(server, names.draft)
    finally:
        await server.close()


def calibrate_engines(
    path: Path,
    options: CalibrationOptions | None = None,
    *,
    address: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    connect: Callable[[str, str], AbstractAsyncContextManager[Engines]] | None = None,
) -> CalibrationResult:
    """Calibrate early exit on the engines that serve the pipeline at `address`, by default where the pipeline itself says.

    They are always asked anew: the engines at an address may be others than before. `connect` takes the place of `connected`.
    Raises SpecError, WeightsError, TokenizerError, CheckError (the draft cannot be an exit), BuildError (too few answers) or EngineError
    (an engine cannot be reached, or fails).
    """
    began, progress = clock(), progress or NoProgress()
    loaded = load_pipeline(path)
    spec, quality, exits = loaded.spec, loaded.spec.quality, loaded.spec.early_exit
    draft = _draft_layers(gather(loaded, this_host()), path)
    bound = Bound(quality.max_disagreement, quality.confidence, exits.max_pending, exits.protected_tokens)
    chosen = options or CalibrationOptions.of(exits.calibration, loaded.base)

    async def ask() -> Mapping[Part, Answers]:
        async with (connect or connected)(address or grpc_address(spec), spec.metadata.name) as engines:
            return await _reader(loaded, engines).read(chosen, progress, lambda: clock() - began)

    answers = asyncio.run(ask())
    progress.stage("the threshold", 1)
    found = calibrate_draft(answers, draft, bound)
    fits, text = wanted_engine_calibration(loaded), json.dumps(found, indent=2, allow_nan=False) + "\n"
    fingerprint = digest([text, fits])
    name = f"exits-{fingerprint[:16]}"

    def fill(folder: Path) -> None:
        (folder / CALIBRATION_FILE).write_text(text, encoding="utf-8")

    cached_folder(cache or default_cache(), name, fill)
    write_calibration(path, CalibrationRecord(name, fingerprint, fits, found["choice"] is not None, found["guarantee"]))
    progress.advance("tested")
    return CalibrationResult(spec.metadata.name, record_file(path), found, cached=False, seconds=clock() - began)


def _draft_layers(context: PlanContext, path: Path) -> DraftLayers:
    """CheckError where no token could leave at the draft."""
    spec, finding, read = context.spec, exit_is_the_draft(context), draft_read_bytes(context)
    if not finding.ok:
        raise CheckError(f"{finding.id}: {finding.message}", where=str(path), mend=finding.mend)
    if spec.early_exit.mode != "answer" or context.cut_draft is None or read is None:
        mend = "Set it to answer, build and serve the engines, then calibrate them: only then does the draft give logits"
        raise CheckError(f"early_exit.mode is {spec.early_exit.mode}", where=str(path), mend=mend)
    cost = read / target_read_bytes(context)
    return DraftLayers(context.cut_draft.num_layers, context.target.num_layers, context.draft_tokens, cost)


def _reader(loaded: LoadedPipeline, engines: Engines) -> Reader:
    files, limits = open_tokenizer(loaded.spec.target.weights, loaded.base), loaded.spec.engine
    tokenizer = Tokenizer(files.tokenizer_json, files.chat_template, files.bos_token, files.eos_token)
    return Reader(ServedEngines(*engines, frozenset(files.eos_token_ids), limits.max_batch_size), tokenizer, limits.max_seq_len)
