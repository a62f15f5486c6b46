"""`builder`: the command line. Parses, calls, prints; what it calls lives elsewhere."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from builder import __version__
from builder.cli import (
    align,
    bench,
    build,
    calibrate,
    chargeback,
    demo,
    doctor,
    drill,
    exporter,
    flags,
    front,
    generate,
    init,
    loadtest,
    plan,
    promote,
    schema,
    serve,
    stack,
    top,
    trace,
    verify,
    versions,
)
from builder.cli.console import err, print_error
from builder.errors import TandemError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
DEBUG = "TANDEM_DEBUG"  # in the environment, so that processes started from here know it too

app = typer.Typer(
    name="builder",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compile one pipeline.yaml into a Triton ensemble that serves a language model with speculative decoding.",
    epilog="Start with: `builder doctor`, `builder init NAME`, `builder plan pipelines/NAME.yaml`.",
)
app.command("init")(init.init)
app.command("schema")(schema.schema)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.command("build")(build.build)
app.command("align")(align.align)
app.command("calibrate")(calibrate.calibrate)
app.command("serve")(serve.serve)
app.command("generate")(generate.generate)
app.add_typer(flags.app, name="flags")
app.command("verify")(verify.verify)
app.command("versions")(versions.versions)
app.command("rollback")(versions.rollback)
app.command("promote")(promote.promote)
app.command("front")(front.front)
app.add_typer(chargeback.app, name="chargeback")
app.command("exporter")(exporter.exporter)
app.command("stack")(stack.stack)
app.command("top")(top.top)
app.command("trace")(trace.trace)
app.add_typer(drill.app, name="drill")
app.command("bench")(bench.bench)
app.command("loadtest")(loadtest.loadtest)
app.command("demo")(demo.demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"builder {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help=f"Show tracebacks; the same as {DEBUG}=1.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)] = False,  # noqa: ARG001
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


def main() -> None:
    """Run the command line and leave with its exit code: 0 done, 1 a check or gate said no, 2 wrong use or bad input."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        app(prog_name="builder")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            err.print("Interrupted.")
        raise
    except TandemError as error:
        if _debugging():
            raise
        print_error(error)
        sys.exit(error.exit_code)
    except Exception as error:
        if _debugging():
            raise
        print_error(_unexpected(error))
        sys.exit(2)


def _leave(number: int, _frame: FrameType | None) -> None:
    """End through the context managers, so that servers and staging folders go too; the exit code is the one shells report."""
    sys.exit(128 + number)


def _unexpected(error: Exception) -> TandemError:
    if isinstance(error, OSError) and error.strerror:  # the machine's fault more often than ours: no space, no permission
        return TandemError(error.strerror, where=error.filename, mend=f"{DEBUG}=1 shows where it happened")
    what = f"unexpected {type(error).__name__}: {error}"
    return TandemError(what, mend=f"This is a defect in builder: run it again with {DEBUG}=1 and report the traceback")


def _debugging() -> bool:
    return os.environ.get(DEBUG, "") not in ("", "0")
