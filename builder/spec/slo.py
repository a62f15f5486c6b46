"""`slo`: what users are promised."""

from __future__ import annotations

from pydantic import Field

from builder.spec.durations import Duration
from builder.spec.section import Section


class Slo(Section):
    """95th percentiles that serving should keep. Watched and alerted on; no request is refused for them."""

    ttft_p95: Duration = Field(default="500ms", validate_default=True, gt=0, description="Time to first token, 95th percentile.")
    inter_token_p95: Duration = Field(default="60ms", validate_default=True, gt=0, description="Time between tokens, 95th percentile.")
    e2e_p95: Duration = Field(default="10s", validate_default=True, gt=0, description="Whole answer, 95th percentile.")
