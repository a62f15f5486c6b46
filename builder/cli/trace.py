"""`builder trace`: where the time of one request goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from builder.cli.console import err, out, print_json
from builder.cli.generate import Speculation
from builder.cli.options import DEFAULT_REPOSITORY, Json, Pipeline, Repository
from builder.spec.load import load_pipeline
from builder.telemetry import span_names as names

if TYPE_CHECKING:  # OpenTelemetry's messages: time that --help must not pay
    from builder.serve.trace import Waterfall
    from builder.telemetry.otlp_receiver import ReceivedSpan

BAR = 40  # characters of the whole request
SHOWN = {  # attributes in a row, by the word for them
    names.TOKENS: "tokens",
    names.INPUT_TOKENS: "prompt",
    names.OUTPUT_TOKENS: "answer",
    names.DRAFT_LENGTH: "K",
    names.DRAFTED: "drafted",
    names.ACCEPTED: "accepted",
    names.EXIT_LAYER: "left at layer",
    names.OPTIMISATION: "",
    names.COUNT: "times",
}


def trace(
    pipeline: Pipeline,
    prompt: Annotated[str, typer.Argument(help="The user's message, or with --raw the text to continue.")],
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Continue the text as it is, or apply the chat template.")] = False,
    speculation: Annotated[Speculation, typer.Option(help="Off decodes plainly.")] = Speculation.AUTO,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, tokens.")] = 32,
    json: Json = False,
    repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Trace one greedy request and show its waterfall: queue, tokenize, prefill, draft, verify, detokenize, and the network around them.

    Starts a server of its own unless the running one sends its spans to this machine and no collector listens there.

    Example: `builder trace pipelines/smollm2.yaml "List three colours."`
    """
    from builder.serve.trace import trace_request, traced_server

    spec = load_pipeline(pipeline).spec
    parameters: dict[str, str | int | float | bool] = {"temperature": 0, "speculation": speculation.value, "max_tokens": max_tokens}
    asked: dict[str, Any] = {"prompt": prompt} if raw else {"messages": [{"role": "user", "content": prompt}]}
    with err.status("trace") as status:
        tell = status.update if err.is_terminal else err.print
        with traced_server(spec, repository, tell) as server:
            found = trace_request(server, spec.metadata.name, parameters, **asked)
    if json:
        print_json(found.to_json())
    else:
        out.print(waterfall_table(found))


def waterfall_table(found: Waterfall) -> Table:
    """A row a span: when it began, how long it took, and where that lies in the whole."""
    table = Table("span", title=f"trace {found.trace_id}", box=None, pad_edge=False, title_justify="left")
    table.add_column("from ms", justify="right")
    table.add_column("ms", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    zero, whole = found.spans[0].start, max(span.end for span in found.spans) - found.spans[0].start
    depths = {found.spans[0].span_id: 0}
    for span in found.spans:
        depth = depths[span.span_id] = depths.get(span.parent_id, -1) + 1 if span.parent_id else 0
        start, length = (span.start - zero) / whole, (span.end - span.start) / whole
        bar = f"{' ' * round(start * BAR)}{'█' * max(1, round(length * BAR))}"
        times = f"{(span.start - zero) / 1e6:.1f}", f"{(span.end - span.start) / 1e6:.1f}"
        table.add_row("  " * depth + escape(span.name), *times, bar, escape(_details(span)))
    return table


def _details(span: ReceivedSpan) -> str:
    parts = [f"{word} {span.attributes[name]}".strip() for name, word in SHOWN.items() if name in span.attributes]
    busy = span.attributes.get(names.BUSY)
    if busy is not None and span.attributes.get(names.COUNT, 1) > 1:
        parts.append(f"{busy * 1e3:.1f} ms of work")
    return ", ".join(part for part in parts if part != "times 1")
