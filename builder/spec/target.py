"""`target`: the model whose answers users get."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from builder.spec.section import Section

Dtype = Literal["bfloat16", "float32"]
WEIGHTS_PATTERN = r"^\S(.*\S)?$"


class Target(Section):
    """The target model. Its distribution is what every optimisation must keep."""

    weights: str = Field(
        pattern=WEIGHTS_PATTERN,
        description="A Hugging Face folder, a .gguf file, or package:DISTRIBUTION/FILE.gguf for a file of an installed package. "
        "Relative paths start at this file's folder.",
    )
    model: str | None = Field(
        default=None,
        pattern=WEIGHTS_PATTERN,
        description="Shape of the model for `plan` on a machine without the weights: a known model such as llama-3.1-8b, or a config.json. "
        "Where the weights are there, they count.",
    )
    dtype: Dtype = Field(
        default="bfloat16",
        description="Number format the target computes with. float32 doubles memory and step time; use it to compare with a reference.",
    )
