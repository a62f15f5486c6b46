"""JSON Schema of pipeline.yaml, for editors."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from builder.spec.pipeline import PipelineSpec


class _Untitled(GenerateJsonSchema):
    """Without the titles pydantic makes up ("Apiversion"): editors show the key itself."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a pipeline; rules over several keys are beyond it."""
    schema = PipelineSpec.model_json_schema(schema_generator=_Untitled)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Tandem pipeline",
        "description": "One pipeline of builder: pipeline.yaml.",
    }


def json_schema_text() -> str:
    """The bytes of pipelines/schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
