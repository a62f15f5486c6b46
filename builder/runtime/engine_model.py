"""The seam to a compiled engine behind Triton's tensorrtllm backend: whole requests in, tokens out.

The backend keeps its own paged cache and batches what is in flight, so nothing of a pass is seen here: no rows, no blocks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from builder.decoding.params import SamplingParams
from builder.errors import EngineError


@dataclass(frozen=True)
class EngineCall:
    """One request of the backend.

    token_ids     the text so far, prompt first; the backend finds most of it in its cache
    max_tokens    request_output_len, at least 1
    sampling      of the request; stop strings and end-of-sequence tokens are looked for by the caller
    seed          of this call's random numbers; None for a greedy one
    draft         tokens to check, at most the engine's max_draft_len
    draft_logits  [len(draft), V], what the draft was drawn from; None: a drafted token is kept where the engine itself chose it
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    seed: int | None = None
    draft: tuple[int, ...] = ()
    draft_logits: NDArray[Any] | None = None
    returns_logits: bool = False
    streams: bool = False


@dataclass(frozen=True)
class EngineReply:
    """New tokens, and the logits [tokens, V] each was chosen from where they were asked for."""

    token_ids: tuple[int, ...]
    logits: NDArray[Any] | None = None


Replies = AsyncGenerator[EngineReply, None]


class EngineModel(Protocol):
    def generate(self, call: EngineCall) -> Replies:
        """One reply, or with `streams` one for each token. Closing the generator ends the request. EngineError when it fails."""
        ...


async def whole_reply(model: EngineModel, call: EngineCall) -> EngineReply:
    """The reply of a call that does not stream; the backend may end it with an empty one. EngineError when there is no token in it."""
    whole = EngineReply(())
    async with aclosing(model.generate(call)) as replies:
        async for reply in replies:
            whole = reply if reply.token_ids else whole
    if not whole.token_ids:
        raise EngineError("the model replied without a token")
    return whole
