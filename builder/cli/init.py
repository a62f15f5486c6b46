"""`builder init`: write a commented pipeline."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.console import err
from builder.errors import SpecError
from builder.spec.template import DEMO_OWNER, template


def init(
    name: Annotated[str, typer.Argument(help="Name of the pipeline: lower-case letters, digits and hyphens.")],
    owner: Annotated[str, typer.Option(help="Who answers for it; alerts go there.")] = DEMO_OWNER,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. [default: pipelines/NAME.yaml]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented pipeline.yaml with every key, its default and its meaning.

    Example: `builder init search --owner search-team@example.com`
    """
    text = template(name, owner)
    path = output or Path("pipelines") / f"{name}.yaml"
    if path.exists() and not force:
        raise SpecError("the file is already there", where=str(path), mend="Choose another name or output, or replace it with --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, text)
    except OSError as error:
        raise SpecError(f"cannot be written: {error.strerror}", where=str(path)) from error
    err.print(f"Wrote {path}. Next: builder plan {path}", markup=False, soft_wrap=True)


def _write_whole(path: Path, text: str) -> None:
    """Write beside and rename: a reader or a full disk never leaves half a file under this name."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        beside = Path(file.name)
        try:
            file.write(text)
            file.flush()
            umask = os.umask(0)
            os.umask(umask)
            beside.chmod(0o666 & ~umask)  # temporary files are private; this one is source
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
