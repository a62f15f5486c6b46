"""The decode model's side of the usage ledger."""

from __future__ import annotations

from pathlib import Path

import triton_python_backend_utils as pb_utils

from builder.chargeback.ledger import Ledger
from builder.chargeback.place import ledger_folder
from builder.chargeback.record import record_of
from builder.runtime.request import Output
from builder.spec.chargeback import Chargeback
from builder.telemetry.triton_sink import TritonSink


class Billing:
    """Nothing here raises OSError: a full disk must not end the serving. It is logged once, and shows in the metrics of the ledger."""

    def __init__(self, repository: Path, chargeback: Chargeback, *, model: str, version: str) -> None:
        self._model, self._version = model, version
        self._ledger = Ledger(ledger_folder(repository, model, chargeback))
        self._logged: str | None = None

    def record(self, tenant: str, output: Output) -> None:
        """Write down what a request used, once it has ended."""
        record = record_of(output, tenant=tenant, model=self._model, version=self._version)
        if record is not None:
            self._ledger.add(record)

    def upkeep(self, sink: TritonSink) -> None:
        self._ledger.upkeep()
        state = self._ledger.state
        sink.ledger(state.writer, written=state.written, lost=state.lost, failures=state.failures, pending=state.pending)
        if state.error is not None and state.error != self._logged:
            pb_utils.Logger.log_error(f"usage ledger {self._ledger.folder}: {state.error}. Records wait in memory.")
        self._logged = state.error

    def close(self) -> None:
        self._ledger.close()
