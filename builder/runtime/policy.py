"""Who is next: an order over sequences. The first waiting one is admitted next, the last running one gives way first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings, TenantLimits

# Seconds of waiting that outweigh one step of priority. A request is overtaken only by those that come within this time, times the
# difference of priorities, after it: ageing, so nobody starves.
SECONDS_PER_PRIORITY = 10.0
# What an output token counts against a prompt token. It takes a pass of its own where prompt tokens share one; price lists say 3 to 5.
OUTPUT_WEIGHT = 4

Rank = tuple[float, ...]


class Policy:
    """First come, first served."""

    def rank(self, sequence: Sequence) -> Rank:
        """Smaller is sooner. No two sequences have the same."""
        return (sequence.order,)

    def arrived(self, sequence: Sequence, others: Iterable[Sequence]) -> None:
        """`others` are those that it finds waiting or running."""

    def admitted(self, sequence: Sequence) -> None:
        """For the first time: its prompt is about to be run."""

    def gave(self, sequence: Sequence, tokens: int) -> None:
        """The sequence won `tokens` of its answer."""


class ByPriority(Policy):
    """The most urgent first, but every SECONDS_PER_PRIORITY of waiting make up for one step.

    All waiting requests age alike, so the order of two never changes and no clock is asked: it is that of
    arrival + priority * SECONDS_PER_PRIORITY.
    """

    def __init__(self, tenants: Mapping[str, TenantLimits]) -> None:
        self._tenants = tenants

    def rank(self, sequence: Sequence) -> Rank:
        request = sequence.request
        limits = self._tenants.get(request.tenant)
        priority = max(request.priority, limits.priority if limits else 0)
        return (request.arrival + priority * SECONDS_PER_PRIORITY, sequence.order)


class Fair(ByPriority):
    """The tenant that was served least first, by its share; among its own requests as ByPriority.

    Virtual token counters (Sheng et al. 2024, "Fairness in Serving Large Language Models"): each tenant's counter grows with the
    tokens it is served, and one that returns starts no lower than the lowest of those that have something waiting or running, so that
    idle time is no credit. (The paper looks at the queue alone; a client that sends one request after another would gain nothing then.)
    """

    def __init__(self, tenants: Mapping[str, TenantLimits]) -> None:
        super().__init__(tenants)
        self.served: dict[str, float] = defaultdict(float)  # weighted tokens by tenant, over its share
        self._latest = 0.0  # counter of the tenant that was admitted last

    def rank(self, sequence: Sequence) -> Rank:
        return (self.served[sequence.request.tenant], *super().rank(sequence))

    def arrived(self, sequence: Sequence, others: Iterable[Sequence]) -> None:
        tenant = sequence.request.tenant
        active = {other.request.tenant for other in others}
        if tenant not in active:
            floor = min((self.served[other] for other in active), default=self._latest)
            self.served[tenant] = max(self.served[tenant], floor)

    def admitted(self, sequence: Sequence) -> None:
        """Tokens found in the prefix cache cost nothing."""
        self._latest = self.served[sequence.request.tenant]
        self._charge(sequence, sequence.pending)

    def gave(self, sequence: Sequence, tokens: int) -> None:
        self._charge(sequence, OUTPUT_WEIGHT * tokens)

    def _charge(self, sequence: Sequence, amount: float) -> None:
        limits = self._tenants.get(sequence.request.tenant)
        self.served[sequence.request.tenant] += amount / (limits.share if limits else 1)


def make_policy(settings: EngineSettings) -> Policy:
    if settings.policy == "fair":
        return Fair(settings.tenants)
    return ByPriority(settings.tenants) if settings.policy == "priority" else Policy()
