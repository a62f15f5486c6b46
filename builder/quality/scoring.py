"""What a model thinks of given tokens: one pass over them, beside the decode loop."""

from __future__ import annotations

from collections.abc import Sequence

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


def mean_nll(subject: Subject, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> float:
    """Mean negative log-probability (nats a token) of the answer under the target; exp of it is the perplexity."""
    if not answer_ids:
        return 0.0
    logits = next_token_logits(subject, [*prompt_ids, *answer_ids[:-1]], len(prompt_ids) - 1)
    chosen = torch.tensor(list(answer_ids))[:, None]
    picked = logits.gather(1, chosen)[:, 0] - logits.logsumexp(-1)
    return -float(picked.double().mean())
