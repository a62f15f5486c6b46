"""`builder build`: compile a pipeline's engines and publish a version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from builder.cli.console import out, print_json
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline, Repository
from builder.cli.stages import show_stages
from builder.spec.load import LoadedPipeline, load_pipeline
from builder.spec.sizes import approximate_bytes

if TYPE_CHECKING:  # the build imports torch: seconds that --help must not pay
    from builder.build import BuildResult
    from builder.repository.handover import Handover


def build(
    pipeline: Pipeline,
    repository: Repository = DEFAULT_REPOSITORY,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Publish only what passes the quality gate, or unproven: the manifest says so.")
    ] = True,
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Let the version go live, or leave that to `builder promote`.")
    ] = True,
    json: Json = False,
) -> None:
    """Check a pipeline, compile its engines, verify them, and publish them as a new version. Exit 1 if a check or gate says no.

    The version goes live in the servers that run on the repository. Nothing is compiled or published twice: a second build
    of the same inputs names the version that is there. For the trtllm backends it makes checkpoints, scripts and
    configurations in build/trtllm/NAME, and says which command finishes them where.

    Example: `builder build pipelines/smollm2.yaml`

    Example: `builder build pipelines/tiny-trtllm.yaml --json`
    """
    loaded = load_pipeline(pipeline)
    if loaded.spec.engine.chosen_backend != "torch_aot":
        _hand_over(loaded, repository, json)
        return
    from builder.build import build_pipeline

    with show_stages() as progress:
        result = build_pipeline(pipeline, repository, progress=progress, verify=verify, promote=promote)
    if json:
        print_json(result.to_json())
    else:
        show(result)


def _hand_over(loaded: LoadedPipeline, repository: Path, json: bool) -> None:
    from builder.compile.cache import default_cache
    from builder.repository.handed_over import handover_folder
    from builder.repository.handover import hand_over

    with show_stages() as progress:
        made = hand_over(loaded, handover_folder(repository, loaded.spec.metadata.name), default_cache(), progress)
    if json:
        print_json(made.to_json())
    else:
        _show_handover(made)


def _show_handover(made: Handover) -> None:
    table = Table("checkpoint", "format", "layers", "size", "source", box=None, pad_edge=False)
    for role, told in made.checkpoints.items():
        table.add_row(role, told["format"], str(told["layers"] or "all"), approximate_bytes(told["bytes"]), told["source"])
    out.print(table)
    standing = "Its engines are compiled." if made.engines_built_here else f"{made.pipeline} is not servable yet: that takes a GPU."
    out.print(f"{standing} {made.next_step}.", soft_wrap=True)


def show(result: BuildResult) -> None:
    """What was built, for people."""
    verb = "is there already, made of the same" if result.cached else "published"
    out.print(f"Version {result.version} of {result.pipeline} {verb} ({result.seconds:.1f} s).")
    if result.live != result.version:
        out.print(f"Version {result.live} is live; `builder promote --to {result.version}` lets this one take over.")
    if result.changed:
        out.print(f"Since the version before, {result.changed} changed: alignment and acceptance are new; run `builder bench` again.")
    if quality := result.results.get("quality"):
        out.print(f"Quality gate: {quality['verdict']}.")
    table = Table("engine", "weights", "layers", "size", "error", "source", box=None, pad_edge=False)
    for role, engine in result.engines.items():
        error = engine.get("mean_quantisation_error")
        size = approximate_bytes(engine["bytes"])
        table.add_row(role, engine["weights"], str(engine["layers"]), size, f"{error:.1%}" if error is not None else "", engine["source"])
    out.print(table)
    if alignment := result.results.get("alignment"):
        before, after = alignment["before"]["length"], alignment["after"]["length"]
        spent = f"{alignment['steps']} steps, {alignment['seconds']:.0f} s"
        verdict = "kept" if alignment["kept"] else "not kept, as acceptance did not rise"
        out.print(f"Alignment ({spent}): {before:.2f} -> {after:.2f} tokens a round on held-out prompts; {verdict}.")
    acceptance = result.results.get("acceptance")
    if acceptance and acceptance["rounds"]:
        out.print(
            f"Acceptance on the shipped prompts: rate {acceptance['rate']:.2f}, length {acceptance['length']:.2f} tokens a round. "
            "Weights that were quantised before (as a GGUF's) accept more than native BF16 weights would."
        )
