"""What decode tells detokenize: the part of each sample's answer that one response carries.

It travels as one text tensor, a JSON document a sample: every tensor of a response costs Triton's shared memory a round trip of
its own, and a streamed answer has tens of responses a second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

Chunk = tuple[list[int], list[int], int]  # context ids, new ids, characters to keep or -1


@dataclass(frozen=True)
class Part:
    """Consecutive chunks of one sample. `key` names the request among those of decode; usage and decode_stats are JSON texts,
    empty but in the last part, as finish_reason is. `logprobs`: for each new token the scores by token id, when asked for.
    `traceparent` is that of the request's span, empty unless it is traced."""

    key: int
    index: int
    chunks: list[Chunk]
    logprobs: list[dict[str, float]]
    finish_reason: str = ""
    usage: str = ""
    decode_stats: str = ""
    traceparent: str = ""

    @property
    def token_ids(self) -> list[int]:
        return [token for _, new_ids, _ in self.chunks for token in new_ids]

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Part:
        return cls(**json.loads(text))
