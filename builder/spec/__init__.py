"""pipeline.yaml: its models, how it is read, its JSON Schema and its commented template."""

from __future__ import annotations

from builder.spec.load import LoadedPipeline, load_pipeline
from builder.spec.pipeline import PipelineSpec
from builder.spec.schema import json_schema, json_schema_text
from builder.spec.template import template

__all__ = ["LoadedPipeline", "PipelineSpec", "json_schema", "json_schema_text", "load_pipeline", "template"]
