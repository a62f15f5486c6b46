"""What a tenant may have at once and a minute. A refusal names the limit and says when to try again."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

from builder.errors import OverloadError
from builder.runtime.drain import Drain
from builder.runtime.settings import TenantLimits

MINUTE = 60.0  # seconds
NO_LIMITS = TenantLimits()


class Limits:
    """Times are seconds of a monotonic clock. Tenants come from an allow-list, so nothing here grows without bound."""

    def __init__(self, tenants: Mapping[str, TenantLimits]) -> None:
        self._tenants = tenants
        self._live: Counter[str] = Counter()  # answers running or waiting
        self._arrivals: dict[str, deque[float]] = defaultdict(deque)  # of the last minute, of tenants with a rate
        self._drains: dict[str, Drain] = defaultdict(Drain)

    def of(self, tenant: str) -> TenantLimits:
        return self._tenants.get(tenant, NO_LIMITS)

    def check(self, tenant: str, answers: int, now: float) -> None:
        """OverloadError when `answers` more are too many for the tenant now; RequestError's mend says when they are not."""
        limits, where = self.of(tenant), f"serving.tenants.{tenant}"
        most, live = limits.max_concurrent, self._live[tenant]
        if most is not None and live + answers > most:
            what = f"tenant {tenant} has {live} answers running or waiting, and {most} is its limit"
            wait = self._drains[tenant].seconds(min(live, live + answers - most), now)
            raise OverloadError(what, where=f"{where}.max_concurrent", limit="tenant_concurrency", retry_after=wait)
        rate = limits.requests_per_minute
        if rate is not None and len(arrivals := self._recent(tenant, now)) >= rate:
            what = f"tenant {tenant} has sent {len(arrivals)} requests in a minute, and {rate} is its limit"
            wait = arrivals[-rate] + MINUTE - now
            raise OverloadError(what, where=f"{where}.requests_per_minute", limit="tenant_rate", retry_after=wait)

    def accepted(self, tenant: str, answers: int, now: float) -> None:
        self._live[tenant] += answers
        if self.of(tenant).requests_per_minute is not None:
            self._recent(tenant, now).append(now)

    def ended(self, tenant: str, now: float) -> None:
        """One answer is over, whatever its end."""
        self._live[tenant] -= 1
        self._drains[tenant].ended(now)

    def _recent(self, tenant: str, now: float) -> deque[float]:
        arrivals = self._arrivals[tenant]
        while arrivals and arrivals[0] <= now - MINUTE:
            arrivals.popleft()
        return arrivals
