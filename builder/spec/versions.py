"""`versions`: how versions follow each other."""

from __future__ import annotations

from pydantic import Field

from builder.spec.section import Section


class Versions(Section):
    """What is kept when a new version goes live."""

    keep: int = Field(
        default=5, ge=2, le=1000, description="Versions kept in the repository; the live one and the one before it are never removed."
    )
    standby: bool = Field(
        default=True,
        description="Keep the version before the live one loaded, so that a rollback takes effect at once. It takes memory like it.",
    )
