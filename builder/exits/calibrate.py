"""The whole way: the target writes and reads text, heads learn from it, thresholds are tested on it."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from builder.align.memory import keep_freed_memory
from builder.align.staging import Parts, staged, staged_spec
from builder.align.vocabulary import most_frequent
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.library import LIBRARY
from builder.compile.torch_aot.unpacking import read_tensors, unpack_dense
from builder.errors import BuildError
from builder.exits import questions
from builder.exits.drafts import choose_draft, read_costs
from builder.exits.guarantee import Bound, calibrate
from builder.exits.head import LearnableHead
from builder.exits.passages import Part, text_passages, write_passages, write_questions
from builder.exits.recipe import HeadsRecipe
from builder.exits.scores import load_scores, score
from builder.exits.states import States, joined, load_states, read_states
from builder.exits.training import Lessons, Training
from builder.files import link_tree, write_atomically
from builder.progress import Progress
from builder.repository.engine import EngineParts, open_parts
from builder.repository.exits import CALIBRATION_FILE
from builder.runtime.runners.exit_head import TorchAotExitHead, load_exit_head
from builder.spec.pipeline import PipelineSpec

PORTION = 100  # prompts written, answered and read before the next look at the clock; what is done is kept after each
BATCH = 48  # answers at once: each is short, and a pass of more rows reads the weights no oftener
WRITING_SHARE = 0.6  # of the time, at most
VOCABULARY = 8192  # tokens an exit may say
MLP_WIDTH = 256
EPOCHS = 4
EVERY = 30.0  # seconds between two writes of where training stands
TRAINING_FILE = "training.json"
_MORE = "Allow more answers, or more minutes"


@dataclass(frozen=True)
class Limits:
    """By default the recipe's time limits, and EPOCHS. With `steps` the clock is not looked at: two runs are then the same to the bit."""

    portion: int = PORTION
    steps: int | None = None


class Clock:
    """Seconds spent, those of earlier interrupted runs included."""

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        self._file, self._clock = file, clock
        self._began = clock() - (float(file.read_text("utf-8")) if file.is_file() else 0.0)

    def spent(self) -> float:
        return self._clock() - self._began

    def keep(self) -> None:
        write_atomically(self._file, f"{self.spent()}\n")  # an interrupted run must find a number


def make_heads(
    folder: Path,
    recipe: HeadsRecipe,
    parts: Parts,
    spec: PipelineSpec,
    work: Path,
    progress: Progress,
    *,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fill `folder` with a packed head for each layer, its scores on answers it did not learn from, and what training came to.

    `work` keeps what an interrupted run has done, and is gone when this returns. Raises BuildError or EngineError.
    """
    keep_freed_memory()
    work.mkdir(parents=True, exist_ok=True)
    limits, watch = limits or Limits(), Clock(work / "seconds", clock)
    states = write_states(recipe, parts, spec, work, limits, watch, progress)
    _check(states)
    kept = torch.tensor(most_frequent(token_counts(states), VOCABULARY, len(states.counts), read_info(parts.target).model.eos_token_ids))
    trained = {}
    for place, layer in enumerate(recipe.layers):
        ends = watch.spent() + (recipe.options.minutes * 60 - watch.spent()) / (len(recipe.layers) - place)
        training = _train(recipe, place, parts, states, kept, work, limits, watch, ends, progress)
        training.head.write(folder / str(layer), read_info(parts.target).model, kept, recipe.fingerprint)
        trained[layer] = training.steps
    progress.stage("heads on answers they did not learn from", 1)
    score(states, _heads(folder, recipe.layers, parts, spec)).save(folder)
    summary = {"steps": trained, "answers": len(states.lengths), "tokens": len(states.best), "seconds": round(watch.spent(), 1)}
    (folder / TRAINING_FILE).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(work)


def make_calibration(heads: Path, folder: Path, recipe: HeadsRecipe, target: Path, bound: Bound, *, keep_all: bool) -> None:
    """Fill `folder` with those of `heads` that tokens may leave at or that drafts best, and calibration.json."""
    scores = load_scores(heads)
    costs = read_costs(target, heads, recipe.layers)
    found = calibrate(scores, recipe.layers, read_info(target).model.num_layers, bound, costs, keep_all=keep_all)
    draft = choose_draft(scores, recipe.layers, costs)
    for layer, threshold in zip(found.layers, found.thresholds, strict=True):
        if threshold is not None or layer == draft["layer"]:
            link_tree(heads / str(layer), folder / str(layer))
    training = json.loads((heads / TRAINING_FILE).read_text(encoding="utf-8"))
    document = {**found.to_json(), "draft": draft, "training": training}
    (folder / CALIBRATION_FILE).write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_states(
    recipe: HeadsRecipe, parts: Parts, spec: PipelineSpec, work: Path, limits: Limits, watch: Clock, progress: Progress
) -> States:
    """Portion after portion, each kept as a file, until there are enough answers or the time for it is over."""
    options = recipe.options
    portions = -(-options.answers // limits.portion)
    progress.stage("the target writes and reads answers", portions)
    found: list[States] = []
    with staged(parts, None) as folder:
        opened = open_parts(folder, staged_spec(spec, 0, BATCH))
        starts = list(itertools.islice(questions.beginnings(recipe.prompts, options.seed), options.answers))
        for number in range(portions):
            file = work / f"portion-{number}.safetensors"
            if (states := load_states(file)) is None:
                if found and limits.steps is None and watch.spent() > WRITING_SHARE * options.minutes * 60:
                    break
                chosen = starts[number * limits.portion : (number + 1) * limits.portion]
                states = _portion(recipe, opened, chosen, first=number == 0)
                states.save(file)
                watch.keep()
            found.append(states)
            progress.advance(f"portion {number + 1}")
    return joined(found)


def _portion(recipe: HeadsRecipe, opened: EngineParts, starts: Sequence[tuple[str, int]], *, first: bool) -> States:
    engine, tokenizer = opened.engine(), opened.tokenizer
    prompts = write_questions(engine, tokenizer, starts)
    if first:  # the prompts themselves, once
        prompts += [prompt for prompt in recipe.prompts if prompt.kind != "text"]
    passages = write_passages(engine, tokenizer, prompts)
    if first:
        passages += text_passages([prompt for prompt in recipe.prompts if prompt.kind == "text"], tokenizer, opened.settings.max_seq_len)
    if not passages:
        raise BuildError("the target wrote nothing to calibrate on", where="early_exit.calibration", mend=_MORE)
    return read_states(opened.target, passages, recipe.layers, opened.settings.block_size)


def _check(states: States) -> None:
    if missing := [part.name.lower() for part in Part if not bool((states.parts == part).any())]:
        what = f"the target's text came to {len(states.lengths)} answers, none to {missing[0]}"
        raise BuildError(what, where="early_exit.calibration", mend=_MORE)


def token_counts(states: States) -> Mapping[int, int]:
    used = states.counts.nonzero().flatten()
    return dict(zip(used.tolist(), states.counts[used].tolist(), strict=True))


def _train(
    recipe: HeadsRecipe,
    place: int,
    parts: Parts,
    states: States,
    kept: torch.Tensor,
    work: Path,
    limits: Limits,
    watch: Clock,
    ends: float,
    progress: Progress,
) -> Training:
    """The head of layer `place`, for EPOCHS or until the clock says `ends`."""
    target, info, seed = read_tensors(parts.target), read_info(parts.target), recipe.options.seed
    rows = unpack_dense(target["head.weight"])[: info.model.vocab_size][kept].float()
    head = LearnableHead(target["norm"], rows, MLP_WIDTH, info.model.rms_norm_eps, seed)
    learned = states.rows_of(Part.LEARN)
    lessons = Lessons.of(states.hidden[place][learned], states.likely, states.probabilities, kept)
    training = Training(head, lessons, seed)
    file = work / f"head-{recipe.layers[place]}.safetensors"
    _restore(training, file)
    steps = limits.steps or EPOCHS * training.steps_an_epoch
    progress.stage(f"exit head after layer {recipe.layers[place]}", steps)
    for _ in range(training.steps):
        progress.advance("done before")
    began, written = watch.spent(), watch.spent()

    def part() -> float:
        timed = 0.0 if limits.steps is not None or training.steps < 1 else (watch.spent() - began) / max(ends - began, 1e-9)
        return max(training.steps / steps, timed)

    def after_step(_loss: float) -> None:
        nonlocal written
        progress.advance(f"step {training.steps}")
        if watch.spent() - written >= EVERY:
            written = watch.spent()
            _keep(training, file, watch)

    training.run(part, after_step)
    _keep(training, file, watch)
    return training


def _keep(training: Training, file: Path, watch: Clock) -> None:
    staged_file = file.with_name(f".{file.name}")
    save_file(training.state(), str(staged_file))
    staged_file.replace(file)
    watch.keep()


def _restore(training: Training, file: Path) -> None:
    """Where an interrupted run stood; from the start when there is none, or it cannot be read."""
    try:
        training.restore(load_file(str(file)))
    except (OSError, SafetensorError, KeyError, RuntimeError):
        return


def _heads(folder: Path, layers: Sequence[int], parts: Parts, spec: PipelineSpec) -> list[TorchAotExitHead]:
    kernels = parts.kernels / LIBRARY
    wanted = spec.engine.instruction_set
    return [load_exit_head(folder / str(layer), kernels, threads=spec.engine.threads, cpus=(), instruction_set=wanted) for layer in layers]
