"""What the packed heads say of the answers they did not learn from, as serving would hear it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from builder.decoding.exits.confidence import MEASURES
from builder.decoding.exits.rule import Answers
from builder.exits.passages import Part
from builder.exits.states import States
from builder.runtime.runners.exit_head import TorchAotExitHead

FILE = "scores.safetensors"
_ROWS = 512  # at once


@dataclass(frozen=True)
class Scores:
    """Rows are the tokens of CHOOSE, TEST and HELD_OUT. confidence float32 [measures, layers, rows] in the order of MEASURES;
    right and lens bool [layers, rows]: the head's token, and the raw state's, is the full model's (lens: HELD_OUT only);
    lengths and parts int32 [answers]."""

    confidence: Tensor
    right: Tensor
    lens: Tensor
    lengths: Tensor
    parts: Tensor

    def answers(self, measure: str, part: Part) -> Answers:
        rows = torch.repeat_interleave(self.parts == part, self.lengths)
        chosen = self.confidence[list(MEASURES).index(measure)][:, rows]
        lengths = tuple(self.lengths[self.parts == part].tolist())
        return Answers(chosen.T.double().numpy(), self.right[:, rows].T.numpy(), lengths)

    def agreement(self, part: Part) -> tuple[list[float], list[float]]:
        """Share of rows, by layer, in which the raw state and the trained head say the full model's token."""
        rows = torch.repeat_interleave(self.parts == part, self.lengths)
        return self.lens[:, rows].double().mean(1).tolist(), self.right[:, rows].double().mean(1).tolist()

    def save(self, folder: Path) -> None:
        save_file({field.name: getattr(self, field.name).contiguous() for field in fields(self)}, str(folder / FILE))


def load_scores(folder: Path) -> Scores:
    return Scores(**load_file(str(folder / FILE)))


@torch.inference_mode()
def score(states: States, heads: Sequence[TorchAotExitHead]) -> Scores:
    """`heads` in the order of the layers of `states`."""
    unseen = ~states.rows_of(Part.LEARN)
    best = states.best[unseen]
    said = [_say(head, states.hidden[place][unseen]) for place, head in enumerate(heads)]
    answers = states.parts != Part.LEARN
    return Scores(
        confidence=torch.stack([confidence for _, confidence in said], dim=1),
        right=torch.stack([tokens == best for tokens, _ in said]),
        lens=states.lens[:, unseen],
        lengths=states.lengths[answers],
        parts=states.parts[answers],
    )


def _say(head: TorchAotExitHead, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens int32 [rows], and confidence float32 [measures, rows]."""
    tokens, confidence = [], []
    for rows in hidden.split(_ROWS):
        said, sure = head.judge(rows.contiguous(), MEASURES.values())
        tokens.append(said.int())
        confidence.append(torch.stack(sure))
    return torch.cat(tokens), torch.cat(confidence, dim=1)
