"""The decode model's tensors for chunks of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.models.tensors import int_tensor, text_tensor
from builder.runtime.request import DecodeStats, Output, Usage


def response(samples: Sequence[Sequence[Output]], key: int, usage: Usage | None, version: str) -> Any:
    """Tensors of DECODE_OUTPUTS for consecutive chunks of each sample; usage comes with an answer's last response."""
    chunks = [chunk for sample in samples for chunk in sample]
    lasts = [sample[-1] for sample in samples]
    rows = [
        (len(chunk.context_ids), len(chunk.token_ids), chunk.text_limit, place) for place, sample in enumerate(samples) for chunk in sample
    ]
    logprobs = [scores for chunk in chunks for scores in chunk.logprobs]
    return pb_utils.InferenceResponse(
        [
            int_tensor("token_ids", [token for chunk in chunks for token in chunk.token_ids]),
            int_tensor("context_ids", [token for chunk in chunks for token in chunk.context_ids]),
            int_tensor("chunks", rows, (-1, 4)),
            text_tensor("token_logprobs", json.dumps(logprobs) if logprobs else ""),
            int_tensor("answer_key", [key]),
            int_tensor("index", [last.index for last in lasts]),
            text_tensor("finish_reason", *(last.finish_reason or "" for last in lasts)),
            text_tensor("usage", usage_json(usage) if usage else ""),
            text_tensor("decode_stats", *(stats_json(last.stats, version) if last.stats else "" for last in lasts)),
        ]
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
            "version": version,
        }
    )
