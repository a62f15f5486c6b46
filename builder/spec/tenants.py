"""`serving.tenants`: what each tenant may ask of the server."""

from __future__ import annotations

from pydantic import Field

from builder.spec.section import Section

LEAST_URGENT = 9


class TenantLimits(Section):
    """Limits of one tenant. null is no limit."""

    max_concurrent: int | None = Field(default=None, ge=1, le=100_000, description="Answers running and waiting at once; more are refused.")
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000, description="Requests in any 60 seconds; more are refused.")
    priority: int = Field(
        default=0,
        ge=0,
        le=LEAST_URGENT,
        description="The most urgent its requests may be, 0 before 9; a request may ask for less. Read by engine.policy priority and fair.",
    )
    share: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Its part of the tokens served while others wait too, against their shares. Read by engine.policy fair.",
    )
