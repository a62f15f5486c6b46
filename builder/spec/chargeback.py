"""`chargeback`: whose tokens are counted under their own name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from builder.spec.section import Section

OTHER_TENANT = "other"
Tenant = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_.-]*[a-z0-9])?$", max_length=63)]


class Chargeback(Section):
    """Token accounting by tenant."""

    tenants: tuple[Tenant, ...] = Field(
        default=(),
        strict=False,  # YAML and JSON have lists, no tuples; the items stay strict text
        max_length=1000,  # each tenant is a label value of every token counter
        description="Tenants counted under their own name (lower-case letters, digits, inner . _ -). Any other counts as `other`, "
        "so that callers cannot invent metric labels.",
    )

    @field_validator("tenants")
    @classmethod
    def _names_are_distinct(cls, tenants: tuple[str, ...]) -> tuple[str, ...]:
        if OTHER_TENANT in tenants:
            raise ValueError(f"`{OTHER_TENANT}` is the name for everybody who is not listed: remove it")
        repeated = sorted({name for name in tenants if tenants.count(name) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)} listed more than once")
        return tenants

    def label(self, tenant: str) -> str:
        """The metric label for a request's tenant: itself when listed, else `other`."""
        return tenant if tenant in self.tenants else OTHER_TENANT
