"""How the engines of a pipeline are made: target and draft from their weights, and the kernels that run them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from builder.align.recipe import AlignmentOptions, AlignmentRecipe
from builder.align.record import wanted_alignment
from builder.compile.cache import cached_folder
from builder.compile.torch_aot import folder as engine_folder
from builder.compile.torch_aot.engine import Packer, WeightType
from builder.compile.torch_aot.folder import EngineInfo, write_folder
from builder.compile.torch_aot.library import INSTRUCTION_SETS, build_library
from builder.progress import Progress
from builder.repository.engine import DRAFT, TARGET
from builder.spec.load import LoadedPipeline
from builder.weights import Checkpoint, TokenizerFiles, open_checkpoint

_KERNEL_STEPS = len(INSTRUCTION_SETS) + 2  # one file each, the binding and the thread team


@dataclass(frozen=True)
class EngineRecipe:
    """How one engine is made; its fingerprint names the folder in the cache."""

    role: str
    checkpoint: Checkpoint
    weights: WeightType
    layers: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    embedding: bool = True
    alignment: AlignmentRecipe | None = None  # of a draft: it is packed without first
    vocabulary: int | None = None  # of a draft: the head is cut last
    counted: AlignmentRecipe | None = None  # what the vocabulary is counted on

    @property
    def fingerprint(self) -> str:
        options = [self.weights, self.layers, self.group_size, self.symmetric, self.embedding]
        made_of = [engine_folder.FORMAT, self.role, self.checkpoint.fingerprint, *options]
        packed = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
        whole = self.alignment.fingerprint(packed) if self.alignment else packed
        return self.counted.fingerprint(f"{whole} {self.vocabulary}") if self.counted else whole

    @property
    def uncut(self) -> EngineRecipe:
        return replace(self, vocabulary=None, counted=None)

    @property
    def unaligned(self) -> EngineRecipe:
        return replace(self.uncut, alignment=None)

    def packer(self) -> Packer:
        return Packer(
            self.checkpoint,
            self.weights,
            layers=self.layers,
            group_size=self.group_size or 0,
            symmetric=bool(self.symmetric),
            embedding=self.embedding,
        )

    @property
    def folder_name(self) -> str:
        return f"{self.role}-{self.fingerprint[:16]}"


def engine_recipes(pipeline: LoadedPipeline, tokenizer: TokenizerFiles, asked: AlignmentOptions | None) -> list[EngineRecipe]:
    """The target's, then the draft's where there is one; `asked` takes the place of the alignment the pipeline wants."""
    spec = pipeline.spec
    target = open_checkpoint(spec.target.weights, pipeline.base)
    recipes = [EngineRecipe(TARGET, target, spec.target.dtype)]
    if draft := spec.used_draft:
        checkpoint = target if draft.from_target else open_checkpoint(draft.weights, pipeline.base)
        layers = None if draft.layers == "all" else draft.layers
        quantization = draft.quantization
        options = asked or wanted_alignment(pipeline, draft)
        alignment = options.recipe(target.fingerprint, tokenizer.fingerprint) if options else None
        packed = (quantization.group_size, quantization.symmetric, not draft.from_target)
        recipe = EngineRecipe(DRAFT, checkpoint, "int4", layers, *packed, alignment)
        if draft.vocabulary != "all":
            counted = alignment or AlignmentOptions().recipe(target.fingerprint, tokenizer.fingerprint)
            recipe = replace(recipe, vocabulary=draft.vocabulary, counted=counted)
        recipes.append(recipe)
    return recipes


def compile_engines(recipes: list[EngineRecipe], cache: Path, progress: Progress) -> None:
    """Kernels and packed engines, in the cache: nothing that is there already is made again. Raises WeightsError or BuildError."""
    progress.stage("kernels", _KERNEL_STEPS)
    build_library(cache, progress.advance)
    for recipe in recipes:
        packer, packed = recipe.packer(), recipe.unaligned
        progress.stage(f"{recipe.role} engine, {recipe.weights}", packer.config.num_layers + 1)
        cached_folder(cache, packed.folder_name, partial(_write_engine, packed, packer, progress))


def _write_engine(recipe: EngineRecipe, packer: Packer, progress: Progress, folder: Path) -> None:
    tensors = packer.tensors(progress.advance)
    info = EngineInfo(
        role=recipe.role,
        model=packer.config,
        weights=recipe.weights,
        source=recipe.checkpoint.source,
        fingerprint=recipe.fingerprint,
        group_size=recipe.group_size,
        symmetric=recipe.symmetric,
        errors=packer.errors or None,
    )
    write_folder(folder, info, tensors)
