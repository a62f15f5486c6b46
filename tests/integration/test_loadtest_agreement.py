"""The load test's figures against those of an independent client: aiohttp, no code in common, on the same server at the same time.

A timed comparison, but of two clients that suffer from a busy machine alike.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import pytest
import yaml

from builder.serve.triton import Triton
from loadtest.ask import Target
from loadtest.plan import Plan
from loadtest.sample import read
from loadtest.session import run_clients
from loadtest.timetable import SERVED, Block
from loadtest.workload import load_workload

SECONDS = 6.0
TOKENS = 80
Measured = list[tuple[float, float, float]]  # time to first token, seconds a token after it, end to end


async def measure(url: str, until: float) -> Measured:
    found: Measured = []
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            body = {"text_input": "Which number comes after six?", "stream": True, "max_tokens": TOKENS, "temperature": 0}
            began, first, usage = time.monotonic(), 0.0, ""
            async with session.post(url, data=json.dumps(body)) as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        first = first or time.monotonic()
                        usage = json.loads(line[6:])["usage"] or usage
            ended = time.monotonic()
            tokens = json.loads(usage)["completion_tokens"]
            found.append((first - began, (ended - first) / (tokens - 1), ended - began))
    return found


@pytest.mark.slow  # compares times: right on an idle machine only
def test_an_independent_client_measures_the_same_within_five_percent(echo_server: Triton, tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(yaml.safe_dump({"description": "One length.", "prompts": {"facts": 1}, "max_tokens": {"min": TOKENS, "max": TOKENS}}))
    http = f"127.0.0.1:{echo_server.ports['http']}"
    target = Target(http, f"127.0.0.1:{echo_server.ports['grpc']}", "echo", raw=True)
    plan = Plan(load_workload(str(file)), target, users=1, blocks=(Block(1, SERVED, SECONDS, 1),))
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(run_clients, plan, tmp_path)
        theirs = asyncio.run(measure(f"http://{http}/v2/models/echo/generate_stream", time.monotonic() + SECONDS + 2))
        ours.result()
    samples = [sample for sample in read(tmp_path / "samples.jsonl") if sample.complete]
    assert len(samples) >= 5
    expected = [statistics.median(column) for column in zip(*theirs, strict=True)]
    columns = ([s.ttft or 0.0 for s in samples], [s.inter_token or 0.0 for s in samples], [s.e2e for s in samples])
    measured = [statistics.median(column) for column in columns]
    assert measured == [pytest.approx(value, rel=0.05, abs=0.002 if place == 0 else None) for place, value in enumerate(expected)]
