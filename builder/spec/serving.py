"""`serving`: addresses and limits of the Triton endpoints."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from builder.spec.chargeback import Tenant
from builder.spec.durations import Duration
from builder.spec.section import Section, conflict
from builder.spec.tenants import TenantLimits

Port = Annotated[int, Field(ge=1, le=65535)]

FORWARDED_HEADERS = "(?i)^(x-tenant|traceparent)$"  # of gRPC requests, those that Triton hands to the models


class Serving(Section):
    """Endpoints and what a request may ask."""

    host: str = Field(
        default="127.0.0.1",
        pattern=r"^[A-Za-z0-9_.:-]+$",
        description="Address to listen on. 127.0.0.1 is this machine only; 0.0.0.0 is every network it is on.",
    )
    http_port: Port = Field(default=8000, description="Triton's HTTP endpoint.")
    grpc_port: Port = Field(default=8001, description="Triton's gRPC endpoint.")
    metrics_port: Port = Field(default=8002, description="Prometheus metrics.")
    max_waiting: int = Field(default=64, ge=0, le=100_000, description="Requests queued beyond the running ones; more are refused.")
    max_prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Longest prompt a request may bring, in tokens; null means up to engine.max_seq_len.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Longest answer a request may ask for, in tokens; null means up to engine.max_seq_len.",
    )
    default_max_tokens: int = Field(
        default=128,
        ge=1,
        description="Longest answer of a request that names no max_tokens; max_tokens and the context still limit it.",
    )
    request_timeout: Duration = Field(
        default="10m",
        validate_default=True,
        ge=0.001,
        le=86_400,
        description="Longest time from a request's arrival to its last token; then it ends with what it has. A request may ask for less "
        "(timeout_ms). It bounds what an answer costs that nobody waits for.",
    )
    tenants: dict[Tenant, TenantLimits] = Field(
        default_factory=dict,
        description="Limits by tenant: those of chargeback.tenants, and `other` for everybody else together. A tenant that is not named "
        "has none. Each takes max_concurrent, requests_per_minute, priority and share.",
    )
    stream_interval: Duration = Field(
        default="50ms",
        validate_default=True,
        le=10,
        description="Shortest time between two chunks of a streamed answer; tokens made meanwhile travel together. A chunk costs about "
        "4 ms of CPU time beside the engine, which two cores feel; 0ms sends every round by itself.",
    )

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        owner: dict[int, str] = {}
        for key in ("http_port", "grpc_port", "metrics_port"):
            port = getattr(self, key)
            if port in owner:
                raise conflict(key, f"serving.{key} and serving.{owner[port]} are both {port}", "Give each endpoint its own port")
            owner[port] = key
        return self

    @property
    def ports(self) -> dict[str, int]:
        """Port by the name of its endpoint: http, grpc, metrics."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
