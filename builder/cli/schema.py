"""`builder schema`: JSON Schema of pipeline.yaml."""

from __future__ import annotations

import sys

from builder.spec.schema import json_schema_text


def schema() -> None:
    """Print the JSON Schema of pipeline.yaml, for editors and linters.

    Example: `builder schema > pipelines/schema.json`
    """
    sys.stdout.write(json_schema_text())
