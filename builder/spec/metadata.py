"""`metadata`: what the pipeline is called and whom its alerts reach."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from builder.spec.section import Section

NAME_MAX = 50  # Triton model names get a suffix such as _detokenize
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$", max_length=63)]


class Metadata(Section):
    """Name, owner and labels."""

    name: str = Field(
        pattern=NAME_PATTERN,
        max_length=NAME_MAX,
        description="Name of the pipeline and of its Triton model: lower-case letters, digits and inner hyphens, starting with a letter.",
    )
    owner: str = Field(
        pattern=r"^\S(.*\S)?$",
        max_length=200,
        description="Who answers for this pipeline: a mail address or team name, on one line. Alerts and runbooks name it.",
    )
    labels: dict[LabelKey, str] = Field(
        default_factory=dict,
        description="Free text labels, kept in the manifest of every version. Keys are letters, digits, and inner . _ -.",
    )
