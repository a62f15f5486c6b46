"""What `builder bench` measured on a version last. Beside it: the files of a version stay as they were published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builder.files import write_atomically
from builder.repository.versions import Version

FOLDER = ".bench"  # hidden: no model for Triton
KEYS = ("created", "plain_tok_s", "headline", "identity", "recommended_k", "triton_share", "machine")  # of the bench's report


def write_bench(version: Version, report: Mapping[str, Any]) -> None:
    """Keep the report's main numbers, in place of those before."""
    folder = version.repository / FOLDER / version.pipeline
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{version.number}.json", json.dumps({key: report[key] for key in KEYS}, indent=2) + "\n")


def read_bench(version: Version) -> dict[str, Any] | None:
    """None when the version was not measured, or what was kept cannot be read."""
    try:
        read = json.loads((version.repository / FOLDER / version.pipeline / f"{version.number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None
