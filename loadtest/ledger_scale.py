"""How long a chargeback report over millions of records takes, and how much memory.

usage: python -m loadtest.ledger_scale [RECORDS]      (10,000,000 unless given: 3.2 GB of ledger in a temporary folder)

The records are made by DuckDB in the ledger's own form; the report is the command line's, in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

RECORDS = 10_000_000
SEGMENT = 200_000  # records, about 64 MB
WRITER = "0123456789ab"
PIPELINE = """\
metadata: {name: p, owner: team@example.com}
target: {weights: w}
chargeback: {per_million_tokens: {input: 0.10, cached_input: 0.02, output: 0.40}, tenants: [t0, t1, t2, t3, t4, t5, t6, t7]}
"""
_SEGMENT = """
    COPY (
        SELECT number, replace(uuid()::VARCHAR, '-', '') AS id, $day || 'T10:00:00.000+00:00' AS time, 't' || number % 8 AS tenant,
            'p' AS model, '1' AS version, CASE WHEN number % 3 = 0 THEN 'plain' ELSE 'speculative' END AS optimisation,
            'stop' AS finish_reason, 100 AS input, 50 AS cached_input, number % 200 AS output, 120 AS drafted, 40 AS rejected,
            45 AS target_passes, 80 AS passes_avoided, 0.812345 AS compute_seconds
        FROM range(1, $records + 1) AS numbers(number)
    ) TO '{path}' (FORMAT json)
"""


def write_ledger(folder: Path, records: int) -> None:
    folder.mkdir(parents=True)
    for segment in range(-(-records // SEGMENT)):
        day = f"2026-03-{1 + segment % 28:02d}"
        path = folder / f"{day}-{WRITER}-{segment + 1:06d}.jsonl"
        rows = min(SEGMENT, records - segment * SEGMENT)
        duckdb.execute(_SEGMENT.format(path=path), {"day": day, "records": rows})


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    with tempfile.TemporaryDirectory(prefix="tandem-ledger-") as name:
        folder = Path(name)
        (folder / "p.yaml").write_text(PIPELINE)
        write_ledger(folder / "model_repository" / ".ledger" / "p", records)
        size = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
        command = [sys.executable, "-c", "from builder.cli.main import main; main()", "chargeback", "report", str(folder / "p.yaml")]
        command += ["--repository", str(folder / "model_repository"), "--from", "2026-03-01", "--to", "2026-03-31", "--json"]
        started = time.monotonic()
        answer = subprocess.run(command, capture_output=True, check=True).stdout
        seconds = time.monotonic() - started
    counted = json.loads(answer)["total"]["requests"]
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # MiB
    print(f"{counted} of {records} records, {size / 1e9:.2f} GB: {seconds:.1f} s, {memory:.0f} MiB")


main()
