"""What the target says about a sample: its distribution after each token, and the keys and values a shared draft reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from builder.align.corpus import Sample
from builder.align.matrices import Fixed
from builder.align.student import KeysValues, View, decode, logits
from builder.weights.config import ModelConfig

TOP = 64  # most likely tokens kept of each distribution: more than 0.99 of the mass of text a model wrote itself


@dataclass(frozen=True)
class Lesson:
    """likely int64 [rows, TOP] and their probabilities, float32.

    given: each layer's keys and values, [1, tokens - 1, kv_heads, head_dim].
    """

    sample: Sample
    likely: Tensor
    probabilities: Tensor
    given: list[KeysValues]


class Teacher:
    """The target in plain torch. `layers` are those whose keys and values the draft reads; 0 when it has a cache of its own."""

    def __init__(self, tensors: Mapping[str, Tensor], config: ModelConfig, layers: int) -> None:
        self._weights = Fixed(tensors)
        self._config = config
        self._layers = layers
        self.embedding = tensors["embed"]
        self._told: dict[Sample, Lesson] = {}

    def lessons(self, samples: Sequence[Sample]) -> list[Lesson]:
        """One each, computed once a sample, those still missing together; kept in memory (23 KB a token for 30 layers, 3 KV heads)."""
        missing = [sample for sample in dict.fromkeys(samples) if sample not in self._told]
        if missing:
            self._told.update(zip(missing, self._tell(missing), strict=True))
        return [self._told[sample] for sample in samples]

    @torch.no_grad()
    def _tell(self, samples: Sequence[Sample]) -> Iterator[Lesson]:
        lengths = [len(sample.ids) - 1 for sample in samples]
        ids = torch.zeros(len(samples), max(lengths), dtype=torch.long)
        for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
            ids[row, :length] = torch.tensor(sample.ids[:-1])
        view = View.causal(len(samples), max(lengths), self._config.sliding_window)
        first = torch.zeros(len(samples), dtype=torch.long)
        hidden, made = decode(self._weights, self._config, self.embedding[ids], first, view)
        for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
            scores = logits(self._weights, self._config, hidden[row, sample.start - 1 : length])
            top, likely = scores.topk(min(TOP, self._config.vocab_size))
            top = (top - scores.logsumexp(-1, keepdim=True)).exp()
            given = [(k[row : row + 1, :length].clone(), v[row : row + 1, :length].clone()) for k, v in made[: self._layers]]
            yield Lesson(sample, likely, top, given)


@dataclass(frozen=True)
class Batch:
    """Samples side by side, short ones padded at their end.

    ids [batch, rows]; first [batch] position of row 0; taught bool [batch, rows], true where a distribution is to be learned;
    likely and probabilities [taught rows, TOP] in row order.
    """

    ids: Tensor
    first: Tensor
    taught: Tensor
    likely: Tensor
    probabilities: Tensor
    given: list[KeysValues] | None


def collate(lessons: Sequence[Lesson], *, shared: bool) -> Batch:
    """Shared cache: only answer rows run, everything before them is given. Own cache: all rows run, answer rows are taught."""
    samples = [lesson.sample for lesson in lessons]
    starts = [sample.start - 1 if shared else 0 for sample in samples]
    lengths = [len(sample.ids) - 1 - start for sample, start in zip(samples, starts, strict=True)]
    ids = torch.zeros(len(samples), max(lengths), dtype=torch.long)
    taught = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (sample, start, length) in enumerate(zip(samples, starts, lengths, strict=True)):
        ids[row, :length] = torch.tensor(sample.ids[start:-1])
        taught[row, sample.start - 1 - start : length] = True
    likely = torch.cat([lesson.likely for lesson in lessons])
    probabilities = torch.cat([lesson.probabilities for lesson in lessons])
    given = [_side_by_side(layer) for layer in zip(*(lesson.given for lesson in lessons), strict=True)] if shared else None
    return Batch(ids, torch.tensor(starts), taught, likely, probabilities, given)


def _side_by_side(parts: Sequence[KeysValues]) -> KeysValues:
    """One layer's keys and values of several samples in one batch, short ones padded at their end."""
    longest = max(keys.shape[1] for keys, _ in parts)
    keys, values = (
        torch.cat([F.pad(part, (0, 0, 0, 0, 0, longest - part.shape[1])) for part in kind]) for kind in zip(*parts, strict=True)
    )
    return keys, values
