"""From the engines inside `<p>_decode/N/` to a decode loop, as the pipeline's spec wants it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.compile.torch_aot.library import LIBRARY
from builder.errors import EngineError
from builder.plan.placement import placed
from builder.repository.exits import EXITS, open_draft_exit, open_exits
from builder.repository.layout import TOKENIZER_FOLDER
from builder.repository.settings import engine_settings
from builder.repository.tokenizer import eos_token_ids, load_tokenizer
from builder.runtime.engine import Engine
from builder.runtime.exits import ExitPoint, Exits
from builder.runtime.observer import Observer
from builder.runtime.runners.cuda.runner import load_cuda_runner
from builder.runtime.runners.exit_head import TorchAotExitHead, load_exit_head
from builder.runtime.runners.loaded import LoadedRunner
from builder.runtime.runners.torch_aot import load_runner
from builder.runtime.settings import EngineSettings
from builder.spec.engine import Device
from builder.spec.pipeline import PipelineSpec
from builder.text import Tokenizer

TARGET, DRAFT, KERNELS = "target", "draft", "kernels"  # folders inside a version of `<p>_decode`


@dataclass(frozen=True)
class EngineParts:
    """Loaded runners with their caches, and what else a decode loop needs. Engines made of the same parts share the KV
    cache, so only one of them may have requests at a time, and those that take turns must have no prefix cache: each
    overwrites what another has kept."""

    target: LoadedRunner
    draft: LoadedRunner | None
    settings: EngineSettings
    eos_token_ids: frozenset[int]
    tokenizer: Tokenizer
    exits: Exits | None = None
    draft_exit: ExitPoint | None = None

    def engine(self, *, observer: Observer | None = None, version: str = "0") -> Engine:
        return Engine(
            self.target,
            self.draft,
            self.settings,
            eos_token_ids=self.eos_token_ids,
            tokenizer=self.tokenizer,
            observer=observer,
            version=version,
            exits=self.exits,
            draft_exit=self.draft_exit,
        )


def open_engine(folder: Path, spec: PipelineSpec, *, observer: Observer | None = None, version: str = "0") -> Engine:
    """The engine of a version folder, not started. EngineError when it cannot run on this machine."""
    return open_parts(folder, spec).engine(observer=observer, version=version)


def open_parts(folder: Path, spec: PipelineSpec) -> EngineParts:
    """Load the runners of a version folder and allocate their caches. EngineError when they cannot run on this machine."""
    with placed(spec.engine).memory():  # pages lie in the node of the core that first writes them
        target, draft = open_runners(folder, spec)
        settings = engine_settings(spec, _allocate(spec, target, draft), shared_kv=spec.shared_cache)
    tokenizer = folder / TOKENIZER_FOLDER
    mode, load = spec.early_exit.mode, partial(_load_head, folder, spec)
    exits = open_exits(folder / EXITS, load) if mode == "answer" else None
    draft_exit = open_draft_exit(folder / EXITS, load) if mode == "draft" else None
    return EngineParts(target, draft, settings, eos_token_ids(tokenizer), load_tokenizer(tokenizer), exits, draft_exit)


def _load_head(folder: Path, spec: PipelineSpec, head: Path) -> TorchAotExitHead:
    threads, library = placed(spec.engine), folder / KERNELS / LIBRARY
    return load_exit_head(head, library, threads=threads.count, cpus=threads.cpus, instruction_set=spec.engine.instruction_set)


def open_runners(folder: Path, spec: PipelineSpec) -> tuple[LoadedRunner, LoadedRunner | None]:
    """Target and draft, without caches, each on its device. The draft is None when the version has none."""
    target = open_runner(folder, TARGET, spec, spec.engine.device)
    if not (folder / DRAFT).is_dir():
        return target, None
    draft = open_runner(folder, DRAFT, spec, spec.draft_device)
    if draft.embedding is None and target.embedding is not None:
        draft.share_embedding(target.embedding)
    return target, draft


def open_runner(folder: Path, name: str, spec: PipelineSpec, device: Device) -> LoadedRunner:
    """The engine `name` of a version folder, on one device, without a cache."""
    options, threads = spec.engine, placed(spec.engine)
    if device == "cuda":
        return load_cuda_runner(folder / name, max_seq_len=options.max_seq_len)
    return load_runner(
        folder / name,
        folder / KERNELS / LIBRARY,
        max_seq_len=options.max_seq_len,
        threads=threads.count,
        cpus=threads.cpus,
        instruction_set=options.instruction_set,
    )


def _allocate(spec: PipelineSpec, target: LoadedRunner, draft: LoadedRunner | None) -> int:
    """Divide engine.kv_cache.memory into blocks and allocate them; the number of blocks."""
    block_size, shared = spec.engine.kv_cache.block_size, spec.shared_cache
    own_draft_cache = draft is not None and not shared
    bytes_per_block = target.cache_bytes_per_block(block_size) + (
        draft.cache_bytes_per_block(block_size) if draft and own_draft_cache else 0
    )
    blocks = spec.engine.kv_cache.memory // bytes_per_block
    # more than every running sequence at full length can use would only take memory
    blocks = min(blocks, spec.engine.max_batch_size * -(-spec.engine.max_seq_len // block_size))
    if blocks < 1:
        raise EngineError(
            "engine.kv_cache.memory does not hold one block", where="engine.kv_cache.memory", mend=f"Give at least {bytes_per_block} bytes"
        )
    target.allocate_cache(blocks, block_size)
    if draft is not None and shared:
        draft.share_cache(target)
    elif draft is not None:
        draft.allocate_cache(blocks, block_size)
    return blocks
