"""What a model thinks of given tokens: one pass over them, beside the decode loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from builder.quality.subject import Subject
from builder.runtime.batch import block_tables, ragged
from builder.runtime.runner import Runner

CHUNK = 256  # rows of one pass


@torch.inference_mode()
def next_token_logits(subject: Subject, token_ids: Sequence[int], start: int, runner: Runner | None = None) -> Tensor:
    """Logits float32 [len(token_ids) - start, V]: row i is what follows token_ids[: start + i + 1].

    `runner` is the target unless given. Overwrites the KV cache: call `Subject.reset` before the next request.
    """
    settings = subject.parts.settings
    model = runner or subject.parts.target
    tables = block_tables([range(-(-len(token_ids) // settings.block_size))])
    wanted = []
    for at in range(0, len(token_ids), CHUNK):
        chunk = token_ids[at : at + CHUNK]
        rows, _ = ragged([(0, at, chunk)], tables)
        hidden = model.layers(model.embed(rows), rows, 0, model.config.num_layers)
        skipped = max(0, start - at)
        if skipped < len(chunk):
            wanted.append(model.head(hidden[skipped:]))
    return torch.cat(wanted)


@dataclass(frozen=True)
class Score:
    """`nll` is the mean negative log-probability (nats a token) of an answer under the target, exp of it the perplexity; `differing` the
    share of its tokens that are not the target's most probable ones after the same text."""

    nll: float
    differing: float


def score(subject: Subject, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Score:
    """Of an empty answer both are 0."""
    if not answer_ids:
        return Score(0.0, 0.0)
    logits = next_token_logits(subject, [*prompt_ids, *answer_ids[:-1]], len(prompt_ids) - 1)
    chosen = torch.tensor(list(answer_ids))[:, None]
    picked = logits.gather(1, chosen)[:, 0] - logits.logsumexp(-1)
    differing = (logits.argmax(-1) != chosen[:, 0]).double().mean()
    return Score(-float(picked.double().mean()), float(differing))
