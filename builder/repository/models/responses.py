"""The decode model's responses for chunks of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.models.parts import Part
from builder.repository.models.tensors import text_tensor
from builder.runtime.request import DecodeStats, Output, Usage


def response(samples: Sequence[Sequence[Output]], key: int, usage: Usage | None, version: str, traceparent: str = "") -> Any:
    """Consecutive chunks of each sample; `usage`, the request's, comes with an answer's last response."""
    parts = [_part(sample, key, usage, version, traceparent) for sample in samples]
    return pb_utils.InferenceResponse([text_tensor("parts", *(part.to_json() for part in parts))])


def _part(sample: Sequence[Output], key: int, usage: Usage | None, version: str, traceparent: str) -> Part:
    last = sample[-1]
    return Part(
        key,
        last.index,
        [(list(chunk.context_ids), list(chunk.token_ids), chunk.text_limit) for chunk in sample],
        [{str(token): score for token, score in scores.items()} for chunk in sample for scores in chunk.logprobs],
        last.finish_reason or "",
        usage_json(usage) if usage else "",
        stats_json(last.stats, version) if last.stats else "",
        traceparent,
    )


def usage_json(usage: Usage) -> str:
    """OpenAI's shape."""
    return json.dumps(
        {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
    )


def stats_json(stats: DecodeStats, version: str) -> str:
    """Counts of the request, and the two rates that follow from them. Times in seconds."""
    return json.dumps(
        {
            **asdict(stats),
            "draft_acceptance_rate": round(stats.draft_acceptance_rate, 4),
            "mean_acceptance_length": round(stats.mean_acceptance_length, 4),
            "average_layers": round(stats.average_layers, 3) if stats.average_layers is not None else None,
            "version": version,
        }
    )
