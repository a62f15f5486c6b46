"""The folder that a person named for a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builder.errors import TandemError

PAGE = "report.html"


def save(folder: Path, page: str, **documents: Any) -> Path:
    """Write each document as NAME.json, and the page, into `folder` (created); the page's path. TandemError when they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (folder / PAGE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise TandemError(
            f"the report cannot be written ({error.strerror})", where=str(folder), mend="Name another folder with --report"
        ) from error
    return folder / PAGE
