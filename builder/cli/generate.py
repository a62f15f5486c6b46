"""`builder generate`: one answer, streamed to stdout, with what it took."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli.console import err, print_json
from builder.cli.options import DEFAULT_REPOSITORY
from builder.errors import ServeError
from builder.serve.client import Chunk
from builder.serve.client import generate as stream
from builder.serve.triton import Triton, model_ready
from builder.spec.addresses import reachable
from builder.spec.load import load_pipeline
from builder.spec.pipeline import PipelineSpec


class EarlyExit(StrEnum):
    ON = "on"
    OFF = "off"


class Speculation(StrEnum):
    ON = "on"
    OFF = "off"
    AUTO = "auto"


def generate(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline.yaml; build it first.")],
    prompt: Annotated[str, typer.Argument(help="The user's message, or with --raw the text to continue.")],
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Continue the text as it is, or apply the chat template.")] = False,
    speculation: Annotated[Speculation, typer.Option(help="Off decodes plainly.")] = Speculation.AUTO,
    early_exit: Annotated[
        EarlyExit, typer.Option(help="Off runs every token in full; on is no more than the pipeline has.")
    ] = EarlyExit.ON,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, tokens.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    repository: Annotated[Path, typer.Option(help="Folder of the model repository, if no server is running.")] = DEFAULT_REPOSITORY,
) -> None:
    """Ask a served pipeline and stream its answer; starts Triton for this one call when none is running.

    Example: `builder generate pipelines/smollm2.yaml "List three colours." --speculation off`
    """
    spec = load_pipeline(pipeline).spec
    parameters: dict[str, str | int | float | bool] = {"temperature": temperature, "speculation": speculation.value}
    if early_exit is EarlyExit.OFF:
        parameters["early_exit"] = "off"
    if max_tokens is not None:
        parameters["max_tokens"] = max_tokens
    asked: dict[str, Any] = {"prompt": prompt} if raw else {"messages": [{"role": "user", "content": prompt}]}
    with ExitStack() as stack:
        url = _server(spec, repository, stack)
        chunks = stream(url, spec.metadata.name, parameters=parameters, **asked)
        text, last = _print_text(chunks, quiet=json)
    if json:
        print_json({"text": text, "finish_reason": last.finish_reason, "usage": last.usage, "decode_stats": last.decode_stats})
    else:
        _print_summary(last)


def _server(spec: PipelineSpec, repository: Path, stack: ExitStack) -> str:
    """The gRPC address of the running server, or of one that lives as long as `stack`."""
    name, serving = spec.metadata.name, spec.serving
    if not model_ready(serving.host, serving.http_port, name):
        err.print(f"No server has {name} on port {serving.http_port}: starting one for this call.", markup=False)
        with err.status("Starting Triton"):
            stack.enter_context(Triton(repository, name, serving.ports, host=serving.host))
    return f"{reachable(serving.host)}:{serving.grpc_port}"


def _print_text(chunks: Iterator[Chunk], quiet: bool) -> tuple[str, Chunk]:
    parts: list[str] = []
    last: Chunk | None = None
    for last in chunks:
        parts.append(last.text)
        if not quiet:
            sys.stdout.write(last.text)
            sys.stdout.flush()
    if last is None or last.finish_reason is None:
        raise ServeError("the answer ended before its last part", mend="Look into the server's log")
    return "".join(parts), last


def _print_summary(last: Chunk) -> None:
    usage, stats = last.usage or {}, last.decode_stats or {}
    sys.stdout.write("\n")
    sys.stdout.flush()
    seconds = stats.get("decode_seconds", 0.0)
    rate = f", {(usage.get('completion_tokens', 1) - 1) / seconds:.1f} tokens/s" if seconds else ""
    err.print(f"usage: {usage.get('prompt_tokens')} + {usage.get('completion_tokens')} tokens, finish_reason {last.finish_reason}")
    if layers := stats.get("average_layers"):
        err.print(f"early exit: {layers:.1f} layers a token, tokens by layer {stats.get('exit_layers')}", markup=False)
    err.print(
        f"decode_stats: {stats.get('optimisation')}, version {stats.get('version')}, "
        f"acceptance rate {stats.get('draft_acceptance_rate', 0.0):.2f}, "
        f"acceptance length {stats.get('mean_acceptance_length', 1.0):.2f}, "
        f"first token {stats.get('time_to_first_token', 0.0) * 1e3:.0f} ms{rate}"
    )
