"""`early_exit`: tokens that an inner layer is sure enough of leave there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from builder.spec.section import Section

Layer = Annotated[int, Field(ge=1)]
Layers = Annotated[tuple[Layer, ...], Field(strict=False)]  # YAML and JSON have lists, no tuples


class Calibration(Section):
    """What `builder calibrate` trains exit heads and tests thresholds on."""

    minutes: float = Field(
        default=20.0,
        gt=0,
        le=1440,
        description="Time it may take: the target writes prompts and answers, a head for each layer learns from some of them, thresholds "
        "are tested on others. Less than it needs means fewer answers and shorter training, and so fewer exits.",
    )
    answers: int = Field(
        default=2000,
        ge=20,
        le=100_000,
        description="Answers the target writes. Four in ten test the thresholds: with fewer than 110 of those nothing can be shown at "
        "2 % and 95 % confidence.",
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Seed of the prompts written and of the order rows are learned in.")
    text: str | None = Field(
        default=None,
        min_length=1,
        description="A JSONL file of your own, beside this one unless the path is absolute: a prompt, messages or text a line. "
        "It joins the shipped prompts.",
    )


class EarlyExit(Section):
    """Early exit at inner layers. Off by default: mode answer changes answers, within what quality.max_disagreement bounds."""

    mode: Literal["none", "answer", "draft"] = Field(
        default="none",
        description="answer: a token whose confidence passes its layer's calibrated threshold leaves there, and the answer may differ from "
        "the full model's; needs `builder calibrate` and speculation.proposer none, or on trtllm-engine a draft of the target's own first "
        "layers, which is the exit there. draft: the layers below an exit propose tokens and the others verify them, which keeps every "
        "token; needs `builder calibrate` and speculation.proposer early_exit. none: no exits.",
    )
    layers: Literal["auto"] | Layers = Field(
        default="auto",
        description="Layers after which a token may leave: [20, 25] is the 20th and 25th, both of them. auto: of two thirds "
        "and five sixths of the depth those that save most time, by the weights that a step reads. trtllm-engine: draft.layers says it.",
    )
    max_pending: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Tokens of an answer that may leave in a row before one runs in full, and fills the keys and values they left out.",
    )
    protected_tokens: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="Tokens at the beginning of an answer that all run in full: a wrong one there turns the whole answer. 1: only the very "
        "first, which the prompt's pass gives.",
    )
    calibration: Calibration = Field(default_factory=Calibration, description="What `builder calibrate` does.")

    @field_validator("layers")
    @classmethod
    def _layers_ascend(cls, layers: Literal["auto"] | tuple[int, ...]) -> Literal["auto"] | tuple[int, ...]:
        if layers != "auto" and (not layers or list(layers) != sorted(set(layers))):
            raise ValueError("layers must ascend, each once")
        return layers

    def exit_layers(self, num_layers: int) -> tuple[int, ...]:
        """The layers meant, of a model with so many."""
        if self.layers != "auto":
            return self.layers
        return tuple(sorted({max(1, num_layers * share // 6) for share in AUTO_SIXTHS}))


AUTO_SIXTHS = (4, 5)  # two thirds of the depth and five sixths
