"""`python -m builder.compare_heads P.yaml --answers 200 --epochs 4`: the table of exit heads in docs/early-exit.md.

The target writes the text as `builder calibrate` has it written; it is kept for the next run, and nothing else is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from builder.align.vocabulary import most_frequent
from builder.build import compile_target
from builder.compile.cache import default_cache
from builder.compile.torch_aot.folder import read_info
from builder.exits.calibrate import VOCABULARY, Clock, Limits, token_counts, write_states
from builder.exits.comparison import Row, compare, table
from builder.exits.recipe import CalibrationOptions, HeadsRecipe
from builder.progress import NoProgress
from builder.spec.load import load_pipeline


def compare_heads(pipeline: Path, answers: int, epochs: int, text: Path, say: Callable[[str], None]) -> list[Row]:
    """Every kind at every exit layer of the pipeline; `text` is the folder that keeps the text. Raises what `builder calibrate` does."""
    loaded = load_pipeline(pipeline)
    parts, prints = compile_target(loaded, default_cache(), NoProgress())
    model, options = read_info(parts.target).model, CalibrationOptions(minutes=60, answers=answers)
    layers = loaded.spec.early_exit.exit_layers(model.num_layers)
    recipe = HeadsRecipe(options, layers, prints["target_engine"], prints["tokenizer"], options.prompts())
    work = text / f"exit-text-{recipe.fingerprint[:16]}"
    work.mkdir(parents=True, exist_ok=True)
    states = write_states(recipe, parts, loaded.spec, work, Limits(), Clock(work / "seconds", time.monotonic), NoProgress())
    kept = torch.tensor(most_frequent(token_counts(states), VOCABULARY, len(states.counts), model.eos_token_ids))
    return compare(states, kept, parts, layers, epochs, say)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--text", type=Path, default=default_cache(), help="folder that keeps the text between runs")
    asked = parser.parse_args()
    print(table(compare_heads(asked.pipeline, asked.answers, asked.epochs, asked.text, lambda line: print(line, flush=True))))


if __name__ == "__main__":
    main()
