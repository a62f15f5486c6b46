"""Records and ledgers of known content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from builder.chargeback.record import Record

FIELDS = {"time": "2026-03-05T10:00:00.000+00:00", "tenant": "search", "model": "p", "version": "3", "optimisation": "speculative"}
COUNTS = {"input": 10, "cached_input": 5, "output": 20, "drafted": 16, "rejected": 4, "target_passes": 8, "passes_avoided": 12}

MakeRecord = Callable[..., Record]


@pytest.fixture
def record() -> MakeRecord:
    """record("id", output=3): the other fields have known values."""

    def make(id: str = "r", **fields: Any) -> Record:
        return Record(**{"id": id, "finish_reason": "stop", "compute_seconds": 0.5, **FIELDS, **COUNTS, **fields})

    return make
