"""`versions`: how versions follow each other."""

from __future__ import annotations

from pydantic import Field

from builder.spec.durations import Duration
from builder.spec.section import Section


class Canary(Section):
    """`builder promote --canary`: a version answers a share of the requests, and is promoted or taken back by what is measured."""

    percent: int = Field(default=10, ge=1, le=50, description="Share of requests in percent, by a hash of their x-request-id header.")
    duration: Duration = Field(default="10m", validate_default=True, gt=0, description="How long it is watched before it is promoted.")
    min_requests: int = Field(
        default=100, ge=1, description="Fewest requests that each version must have answered by then, else the new one is taken back."
    )
    max_error_increase: float = Field(
        default=0.01, ge=0, le=1, description="Largest increase of the share of requests that fail, against the live version."
    )
    max_p95_ratio: float = Field(
        default=1.25, ge=1, description="Largest 95th percentile of the time of an answer, relative to the live version's."
    )
    max_acceptance_drop: float = Field(
        default=0.1, ge=0, le=1, description="Largest loss of acceptance rate (accepted over drafted tokens) against the live version."
    )
    max_success_drop: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Largest loss of task success on the prompts of quality.suites, asked of both versions before users are.",
    )


class Versions(Section):
    """What is kept when a new version goes live, and how it may be tried on a part of the traffic."""

    keep: int = Field(
        default=5, ge=2, le=1000, description="Versions kept in the repository; the live one and the one before it are never removed."
    )
    standby: bool = Field(
        default=True,
        description="Keep the version before the live one loaded, so that a rollback takes effect at once. It takes memory like it.",
    )
    canary: Canary = Field(default_factory=Canary, description="Limits of `builder promote --canary`.")
