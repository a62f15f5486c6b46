"""`draft`: the cheap model that proposes tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from builder.spec.section import Section
from builder.spec.target import WEIGHTS_PATTERN

DraftDevice = Literal["same", "cpu", "cuda"]


class Quantization(Section):
    """How the draft's linear layers are packed."""

    bits: Literal[4] = Field(default=4, description="Bits of a packed weight.")
    group_size: Literal[32, 64, 128] = Field(
        default=32,
        description="Weights that share one scale. Smaller follows the weights more closely and reads more bytes. "
        "Must divide the model's layer widths.",
    )
    symmetric: bool = Field(
        default=True,
        description="true: a scale for each group. false: a scale and a minimum: closer to weights whose groups are not centred, "
        "one ninth more bytes.",
    )


class Alignment(Section):
    """Tuning of the draft's scales and norms to its target, at build time."""

    minutes: float = Field(
        default=5.0,
        gt=0,
        le=1440,
        description="Time it may take, all of it: the target writes text, the draft learns it, acceptance is measured before and after.",
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Seed of the target's samples and of the order they are learned in.")
    text: str | None = Field(
        default=None,
        min_length=1,
        description="A JSONL file of your own, beside this one unless the path is absolute: a prompt, messages or text a line. "
        "It joins the shipped prompts.",
    )


class Draft(Section):
    """The draft model, or null for none. It must be of the target's family: same vocabulary and tokenizer."""

    weights: str = Field(
        default="same",
        pattern=WEIGHTS_PATTERN,
        description="`same` makes the draft from the target's own weights and lets it share the target's KV cache. "
        "Otherwise a reference like target.weights; the vocabulary and tokenizer must match the target's.",
    )
    model: str | None = Field(
        default=None,
        pattern=WEIGHTS_PATTERN,
        description="Shape of the model for `plan` on a machine without the weights: a known model such as llama-3.1-8b, or a config.json. "
        "Where the weights are there, they count.",
    )
    quantization: Quantization = Field(default_factory=Quantization, description="How the draft's linear layers are packed.")
    layers: Literal["all"] | Annotated[int, Field(ge=1)] = Field(
        default="all",
        description="`all`, or the number N of first layers to keep. Fewer layers draft faster and are accepted less.",
    )
    vocabulary: Literal["all"] | Annotated[int, Field(ge=256)] = Field(
        default="all",
        description="`all`, or the number N of tokens the draft may propose: those the target itself writes most often. A smaller head is "
        "less to read each draft step; tokens outside are never drafted and come from the target.",
    )
    device: DraftDevice = Field(
        default="same",
        description="Where the draft runs. same: where the target does. cpu, cuda: there; `plan` refuses what the engine cannot do, and "
        "`builder bench --placement` measures what this machine has.",
    )
    alignment: Alignment | None = Field(
        default_factory=Alignment,
        description="Tune the draft to imitate the target, once for each target: more drafted tokens are accepted for the same step time. "
        "Kept only if acceptance on held-out prompts rises. null leaves the draft as it was quantised.",
    )

    @property
    def from_target(self) -> bool:
        """The draft is made from the target's own layers, so the two may share one KV cache."""
        return self.weights == "same"
