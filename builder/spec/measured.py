"""`speculation.measured`: figures measured elsewhere, which `plan` predicts with in place of its own estimate."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from builder.spec.section import Section, conflict

_TIMES = ("plain_ms", "draft_ms", "verify_ms")


class Measured(Section):
    """An acceptance rate, and perhaps step times, measured on the machine that will serve."""

    acceptance: float = Field(ge=0, le=1, description="Chance that a drafted token is kept, 0 to 1, on your own traffic.")
    plain_ms: float | None = Field(default=None, gt=0, description="Milliseconds of a plain target step.")
    draft_ms: float | None = Field(default=None, ge=0, description="Milliseconds of one draft step.")
    verify_ms: float | None = Field(default=None, gt=0, description="Milliseconds of the target pass that checks a whole draft.")

    @model_validator(mode="after")
    def _times_come_together(self) -> Self:
        missing = [key for key in _TIMES if getattr(self, key) is None]
        if missing and len(missing) < len(_TIMES):
            raise conflict(missing[0], f"{missing[0]} is missing beside the other times", "Give all three times, or none")
        return self
