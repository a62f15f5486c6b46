"""`chargeback`: whose tokens are counted under their own name, and what they cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from builder.spec.section import Section

OTHER_TENANT = "other"
PROBE_TENANT = "probe"  # of the prompts that `builder promote --canary` asks
Tenant = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_.-]*[a-z0-9])?$", max_length=63)]
Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class TokenPrices(Section):
    """Prices of a million tokens, in `chargeback.currency`."""

    input: Price = Field(default=0.0, description="Prompt tokens that were computed.")
    cached_input: Price = Field(default=0.0, description="Prompt tokens taken from the prefix cache.")
    output: Price = Field(default=0.0, description="Tokens of answers, however they were made.")
    draft_rejected: Price = Field(
        default=0.0,
        description="Drafted tokens that the target refused. 0: the operator carries them; else the tenant whose request drafted them.",
    )


class Chargeback(Section):
    """Token accounting by tenant."""

    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$", description="ISO 4217 code of the prices.")
    per_million_tokens: TokenPrices = Field(
        default_factory=TokenPrices, description="Prices of a million tokens, for `builder chargeback report`; 0 is free."
    )
    tenants: tuple[Tenant, ...] = Field(
        default=(),
        strict=False,  # YAML and JSON have lists, no tuples; the items stay strict text
        max_length=1000,  # each tenant is a label value of every token counter
        description="Tenants counted under their own name (lower-case letters, digits, inner . _ -). Any other counts as `other`, "
        "so that callers cannot invent metric labels.",
    )
    ledger: str | None = Field(
        default=None,
        pattern=r"^/",
        description="Absolute path of the folder with the usage ledgers; null means `.ledger` in the model repository. "
        "Name one where the repository is read-only or not kept. Nothing deletes ledgers.",
    )

    @field_validator("tenants")
    @classmethod
    def _names_are_distinct(cls, tenants: tuple[str, ...]) -> tuple[str, ...]:
        if OTHER_TENANT in tenants:
            raise ValueError(f"`{OTHER_TENANT}` is the name for everybody who is not listed: remove it")
        if PROBE_TENANT in tenants:
            raise ValueError(f"`{PROBE_TENANT}` is the name for the prompts of `builder promote --canary`: choose another")
        repeated = sorted({name for name in tenants if tenants.count(name) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)} listed more than once")
        return tenants

    def label(self, tenant: str) -> str:
        """The metric label for a request's tenant: itself when listed or `probe`, else `other`."""
        return tenant if tenant in self.tenants or tenant == PROBE_TENANT else OTHER_TENANT
