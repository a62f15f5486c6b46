"""The usage ledger of one serving process: one record a request, append-only, whole after a kill at any moment.

A record is handed to the operating system before the answer's last chunk leaves, so a killed server (kill -9) loses the
record of no answer that a client has seen end. `sync` puts it on disk within SYNC_PERIOD, so a power cut may lose the
records of the last second. Nothing is written twice: every record belongs to one segment with one writer, and a line
that was written in part is taken back or, with the writer dead, cut off by the next one.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.chargeback.record import Record
from builder.chargeback.segment import Segment, repair

SEGMENT_BYTES = 64 << 20
SYNC_PERIOD = 1.0  # seconds between two fsyncs while records come
MAX_PENDING = 100_000  # records kept in memory, about 50 MB, while they cannot be written


@dataclass(frozen=True)
class LedgerState:
    """Counts since the start, but `pending`: records in memory that wait for a file system that takes them again."""

    writer: str
    written: int = 0
    lost: int = 0  # dropped because too many were pending
    failures: int = 0  # of writing, syncing or sealing
    pending: int = 0
    error: str | None = None  # the latest failure, until a write succeeds


def utc_day() -> str:
    return datetime.now(UTC).date().isoformat()


class Ledger:
    """Writes to `folder`, which other writers may share. `add` and `upkeep` may be called by different threads; neither raises OSError."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, today: Callable[[], str] = utc_day) -> None:
        self.folder = folder
        self.writer = uuid.uuid4().hex[:12]
        self._segment_bytes = segment_bytes
        self._today = today
        self._segment: Segment | None = None
        self._number = 0  # of the latest segment, from 1
        self._pending: deque[Record] = deque()
        self._written = self._lost = self._failures = 0
        self._error: str | None = None
        self._synced = 0  # of the records written
        self._next_sync = 0.0  # monotonic clock
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            repair(folder)
        except OSError as error:
            self._fail(error)

    @property
    def state(self) -> LedgerState:
        with self._lock:
            return LedgerState(self.writer, self._written, self._lost, self._failures, len(self._pending), self._error)

    def add(self, record: Record) -> None:
        """Write the record, after those that could not be written before. Some 10 microseconds; no wait for the disk."""
        with self._lock:
            self._pending.append(record)
            if len(self._pending) > MAX_PENDING:
                self._pending.popleft()
                self._lost += 1
            if self._error is None:
                self._write_pending()

    def upkeep(self) -> None:
        """Retry what could not be written, fsync what was, seal a segment of an earlier day. To be called a few times a second."""
        with self._lock:
            if self._pending or self._error:
                self._write_pending()
            if self._segment is not None and self._today() > self._segment.day:
                self._seal()
            due = self._segment is not None and self._synced < self._written and time.monotonic() >= self._next_sync
            descriptor = os.dup(self._segment.descriptor) if due and self._segment is not None else None
            written = self._written
        if descriptor is not None:  # outside the lock: a slow disk must not hold up answers
            self._sync(descriptor, written)

    def close(self) -> None:
        """Seal the last segment."""
        with self._lock:
            self._write_pending()
            self._seal()

    def _sync(self, descriptor: int, written: int) -> None:
        try:
            os.fsync(descriptor)
            self._synced = written
            self._next_sync = time.monotonic() + SYNC_PERIOD
        except OSError as error:
            with self._lock:
                self._fail(error)
        finally:
            os.close(descriptor)

    def _write_pending(self) -> None:
        self._error = None
        while self._pending and self._error is None:
            try:
                segment = self._segment_for(self._pending[0])
                segment.append(self._pending[0].line(segment.records + 1))
                self._pending.popleft()
                self._written += 1
            except OSError as error:
                self._fail(error)

    def _segment_for(self, record: Record) -> Segment:
        """A segment holds records of one UTC day, so that a report opens only the days it needs."""
        current = self._segment
        if current is not None and (record.day != current.day or current.size >= self._segment_bytes):
            self._seal()
        if self._segment is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._segment = Segment(self.folder, record.day, self.writer, self._number + 1)
            self._number += 1
        return self._segment

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.seal()
            self._synced = self._written
        except OSError as error:  # the records are there; the next writer repairs and seals
            self._fail(error)
            segment.close()

    def _fail(self, error: OSError) -> None:
        self._error = str(error)
        self._failures += 1
