"""One line of the ledger: what one request used. Counts and names only, never a prompt or an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from builder.runtime.request import Output


@dataclass(frozen=True)
class Record:
    """Token counts are those of the counter `tandem_tokens`: `input` leaves out what the prefix cache gave.

    `optimisation` is how the request was decoded. `passes_avoided` are the target passes that plain decoding would have
    needed beyond `target_passes`, counted while decoding. `compute_seconds` is its share of the time of the passes it was in.
    """

    id: str  # of the engine, unique; a client's own id may hold anything
    time: str  # when it ended, UTC, ISO 8601
    tenant: str
    model: str
    version: str
    optimisation: str
    finish_reason: str
    input: int
    cached_input: int
    output: int
    drafted: int
    rejected: int
    target_passes: int
    passes_avoided: int
    compute_seconds: float

    @property
    def day(self) -> str:
        """UTC day, YYYY-MM-DD."""
        return self.time[:10]

    def line(self, number: int) -> bytes:
        """As stored: one line of JSON, with its number in the segment."""
        return json.dumps({"number": number, **vars(self)}, separators=(",", ":")).encode("ascii")


def record_of(output: Output, *, tenant: str, model: str, version: str, now: datetime | None = None) -> Record | None:
    """The record of a request's last output; None when it used nothing that was counted."""
    usage, stats = output.usage, output.stats
    if usage is None or stats is None or output.finish_reason is None:
        return None
    return Record(
        id=output.request_id,
        time=(now or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        tenant=tenant,
        model=model,
        version=version,
        optimisation=stats.optimisation,
        finish_reason=str(output.finish_reason),
        input=usage.prompt_tokens - usage.cached_tokens,
        cached_input=usage.cached_tokens,
        output=usage.completion_tokens,
        drafted=stats.num_draft_tokens,
        rejected=stats.num_draft_tokens - stats.num_accepted_draft_tokens,
        target_passes=stats.target_passes,
        passes_avoided=stats.target_passes_avoided,
        compute_seconds=round(stats.compute_seconds, 6),
    )


def is_whole(line: bytes) -> bool:
    """Whether a line is a record. The brace that closes it is its last byte: without that it was torn."""
    try:
        return "number" in json.loads(line)
    except (ValueError, TypeError):
        return False
