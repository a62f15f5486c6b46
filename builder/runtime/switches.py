"""What an operator allows of the optimisations, as the decode loop reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Switches:
    """Tenants that are not listed follow the pipeline. Replaced as a whole, never changed, so that threads may share one."""

    speculation: bool = True
    tenant_speculation: Mapping[str, bool] = field(default_factory=dict)
    prefix_cache: bool = True
    tenant_prefix_cache: Mapping[str, bool] = field(default_factory=dict)
    early_exit: bool = True
    tenant_early_exit: Mapping[str, bool] = field(default_factory=dict)

    def speculation_for(self, tenant: str) -> bool:
        return self.tenant_speculation.get(tenant, self.speculation)

    def prefix_cache_for(self, tenant: str) -> bool:
        return self.tenant_prefix_cache.get(tenant, self.prefix_cache)

    def early_exit_for(self, tenant: str) -> bool:
        return self.tenant_early_exit.get(tenant, self.early_exit)
