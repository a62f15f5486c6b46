"""One run of `builder bench` on a published version: every measurement in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from builder.bench import speculation
from builder.bench.calibration import median_costs
from builder.bench.early_exit import measure_exits
from builder.bench.identity import check_batches
from builder.bench.lab import EARLY_EXIT, PLAIN, Lab, Setting
from builder.bench.peers import PYTHON, Peer, measure_peers, require_peers
from builder.bench.prompts import Prompt, kinds, select
from builder.bench.report import Machine, Report
from builder.bench.roofline import measure_rooflines
from builder.bench.spread import Spread
from builder.bench.through_triton import TritonResult, measure_triton
from builder.errors import SpecError
from builder.repository.models.folder import read_spec
from builder.repository.versions import Version
from builder.spec.load import LoadedPipeline
from builder.spec.pipeline import PipelineSpec
from builder.weights.source import resolve

Say = Callable[[str], None]

QUICK_TOKENS, QUICK_PER_CLASS, QUICK_BATCH = 64, 2, 3
TRITON_PER_CLASS = 4  # through Triton: its share hardly hangs on the prompt
LARGEST_K = 16


@dataclass(frozen=True)
class Options:
    """What to measure. None stands for all classes, and for K = 1 to 4 (with `quick`, the version's own)."""

    tokens: int = 128  # of every answer
    draft_lengths: tuple[int, ...] | None = None
    classes: tuple[str, ...] | None = None
    quick: bool = False
    triton: bool = True
    peers: bool = False

    @property
    def answer_tokens(self) -> int:
        return min(self.tokens, QUICK_TOKENS) if self.quick else self.tokens

    def prompts(self) -> tuple[Prompt, ...]:
        return select(self.classes or kinds(), QUICK_PER_CLASS if self.quick else None)

    def lengths(self, published: int) -> tuple[int, ...]:
        """The K to measure, smallest first; `published` is the version's. SpecError for one out of range."""
        chosen = self.draft_lengths or ((published,) if self.quick else (1, 2, 3, 4))
        for k in chosen:
            if not 1 <= k <= LARGEST_K:
                raise SpecError(f"cannot draft {k} tokens a round", where="--k", mend=f"Give numbers from 1 to {LARGEST_K}")
        return tuple(sorted(set(chosen)))


def run_bench(loaded: LoadedPipeline, version: Version, options: Options, on_progress: Say = lambda _: None) -> Report:
    """Measure the newest version of a pipeline. `on_progress` is told what comes next.

    Raises SpecError for options out of range, EngineError when the version cannot run here, ServeError when Triton fails, and
    CheckError when peers are wanted but not installed.
    """
    if options.peers:
        require_peers(PYTHON)
    folder = version.decode_folder
    spec = read_spec(folder)  # as built, whatever the file says by now
    prompts, tokens = options.prompts(), options.answer_tokens
    lengths = options.lengths(spec.speculation.max_draft_tokens)
    began = time.monotonic()
    on_progress("loading the engines")
    lab = Lab.open(folder, spec)
    published = _published(spec, lab)
    ids = {prompt.name: lab.fit(prompt.ids(lab.parts.tokenizer), tokens) for prompt in prompts}

    samples = speculation.measure(lab, prompts, lab.methods, lengths, tokens, on_progress)
    on_progress("bandwidth")
    context = sorted(map(len, ids.values()))[len(ids) // 2] + tokens // 2
    rooflines = measure_rooflines(lab, folder, context)
    batched = dict(list(ids.items())[:QUICK_BATCH]) if options.quick else ids
    for setting in (PLAIN, *(Setting(k, method) for k in lengths for method in lab.methods)):
        on_progress(f"identity in a batch: {setting.method}, K={setting.draft_tokens}")
        check_batches(lab, setting, batched, tokens, samples.identity)
    exits = measure_exits(lab, prompts, tokens, on_progress) if lab.parts.exits is not None else []
    best = speculation.best_setting(samples.speculative, published.method if published.draft_tokens else None)
    return Report(
        pipeline=version.pipeline,
        version=version.number,
        published=published,
        tokens=tokens,
        prompts=prompts,
        machine=Machine.of(lab.parts.target.instruction_set, spec.engine.threads),
        plain=Spread.of(answer.tokens_per_second for _, answer in samples.plain),
        time_to_first_token=Spread.of(answer.time_to_first_token for _, answer in samples.plain),
        prompt_tokens=Spread.of(map(len, ids.values())),
        samples=tuple(samples.speculative),
        results=tuple(speculation.results(samples.speculative)),
        best=best,
        costs={k: median_costs(found) for k, found in samples.costs.items()},
        rooflines=rooflines,
        identity=samples.identity,
        load_seconds=lab.load_seconds,
        triton=_triton(lab, version, published, prompts, tokens, on_progress) if options.triton else None,
        peers=tuple(_peers(lab, loaded, best, prompts, tokens, on_progress)) if options.peers and best else (),
        seconds=time.monotonic() - began,
        early_exit=tuple(exits),
    )


def _published(spec: PipelineSpec, lab: Lab) -> Setting:
    """How the version serves."""
    if spec.speculation.proposer != "none":
        return Setting(spec.speculation.max_draft_tokens, spec.speculation.proposer)
    return PLAIN if lab.parts.exits is None else EARLY_EXIT


def _triton(lab: Lab, version: Version, published: Setting, prompts: Sequence[Prompt], tokens: int, say: Say) -> TritonResult | None:
    """With the prompts that fit whole: a client cannot cut them as the lab does. None when none does."""
    room = lab.parts.settings.max_seq_len - tokens
    classes = dict.fromkeys(prompt.kind for prompt in prompts)
    some = [prompt for kind in classes for prompt in [each for each in prompts if each.kind == kind][:TRITON_PER_CLASS]]
    fitting = [prompt for prompt in some if len(prompt.ids(lab.parts.tokenizer)) <= room]
    return measure_triton(lab, version.repository, version.pipeline, published, fitting, tokens, say) if fitting else None


def _peers(lab: Lab, loaded: LoadedPipeline, best: Setting, prompts: Sequence[Prompt], tokens: int, say: Say) -> list[Peer]:
    return measure_peers(lab, resolve(loaded.spec.target.weights, loaded.base).path, best, prompts, tokens, say)
