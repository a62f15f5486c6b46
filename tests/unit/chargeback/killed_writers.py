"""Fork writers one after the other and kill each with SIGKILL; print the ids whose `add` had returned.

usage: killed_writers.py FOLDER WRITERS. A process of its own: forking the test's, full of torch's threads, is not safe.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from builder.chargeback.ledger import Ledger
from builder.chargeback.record import Record


def write_for_ever(folder: Path, writer: int, acknowledged: int) -> None:
    ledger = Ledger(folder, segment_bytes=4096)  # about a dozen records: kills also meet rotations
    number = 0
    while True:
        identity = f"{writer}-{number}"
        counts = dict.fromkeys(("input", "cached_input", "output", "drafted", "rejected", "target_passes", "passes_avoided"), 1)
        names = {"tenant": "t", "model": "p", "version": "1", "optimisation": "plain", "finish_reason": "stop"}
        ledger.add(Record(identity, "2026-03-05T10:00:00.000+00:00", **names, **counts, compute_seconds=0.1))
        os.write(acknowledged, f"{identity}\n".encode())
        if number % 7 == 0:
            ledger.upkeep()
        number += 1


def main() -> None:
    folder, writers, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(1)
    for writer in range(writers):
        reading, acknowledged = os.pipe()
        child = os.fork()
        if not child:
            write_for_ever(folder, writer, acknowledged)
        os.close(acknowledged)
        with os.fdopen(reading) as lines:
            for _ in range(chance.randint(1, 60)):
                sys.stdout.write(next(lines))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            sys.stdout.writelines(lines)


main()
