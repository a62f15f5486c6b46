"""Task success before users are served: the prompts of quality.suites, asked of the live and of the tried version where they serve.

They carry the tenant `probe`, in metrics and ledger alike: nobody is billed for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.canary.comparison import Comparison, compare_success
from builder.errors import RequestError, ServeError
from builder.quality.cases import Case
from builder.quality.grading import passes
from builder.serve import client
from builder.spec.chargeback import PROBE_TENANT

TIMEOUT = 60.0  # seconds between two chunks


@dataclass(frozen=True)
class Probes:
    """`urls` are host:port (gRPC) of a server of the live version and of the one of the tried version."""

    pipeline: str
    urls: tuple[str, str]
    cases: Sequence[Case]
    chats: bool  # whether the model has a chat template
    longest: int  # tokens of an answer at most

    def compare(self, limit: float) -> Comparison:
        """Asks each case of both. Takes as long as the answers do."""
        answers = [tuple(self._passes(url, case) for url in self.urls) for case in self.cases]
        return compare_success([stable for stable, _ in answers], [tried for _, tried in answers], limit)

    def _passes(self, url: str, case: Case) -> bool:
        """An answer that fails is none that is right."""
        parameters: client.Parameters = {"max_tokens": min(case.max_tokens, self.longest), "tenant": PROBE_TENANT}
        prompt, messages = (None, [{"role": "user", "content": case.prompt}]) if self.chats else (case.prompt, None)
        try:
            chunks = client.generate(url, self.pipeline, prompt=prompt, messages=messages, parameters=parameters, timeout=TIMEOUT)
            return passes(case.check, "".join(chunk.text for chunk in chunks))
        except (RequestError, ServeError):
            return False
