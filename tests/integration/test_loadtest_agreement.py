"""The load test's figures against those of an independent client: aiohttp, no code in common, on the same server at the same time.

A timed comparison, but of two clients that suffer from a busy machine alike.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import pytest
import yaml

from builder.serve.triton import Triton
from builder.telemetry.catalogue import FIRST_TOKEN, REQUEST_LATENCY, Metric
from builder.telemetry.quantile import difference, quantile
from builder.telemetry.scrape import Scrape, scrape
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


def bucket_of(metric: Metric, seconds: float) -> int:
    return bisect.bisect_left(metric.buckets, seconds)


def histogram_p95(metric: Metric, before: Scrape, after: Scrape) -> float:
    found = quantile(0.95, difference(after.buckets(metric.name), before.buckets(metric.name)))
    assert found is not None
    return found


@pytest.mark.slow  # compares times: right on an idle machine only
def test_the_p95_of_the_histograms_is_within_one_bucket_of_the_clients_exact_one(tiny_server: Triton, tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(yaml.safe_dump({"description": "One length.", "prompts": {"chat": 1}, "max_tokens": {"min": TOKENS, "max": TOKENS}}))
    url = f"http://127.0.0.1:{tiny_server.ports['metrics']}/metrics"
    target = Target(f"127.0.0.1:{tiny_server.ports['http']}", f"127.0.0.1:{tiny_server.ports['grpc']}", "tiny", raw=True)
    plan = Plan(load_workload(str(file)), target, users=4, blocks=(Block(1, SERVED, 3 * SECONDS, 1),))
    before = scrape(url)
    run_clients(plan, tmp_path)
    time.sleep(1)  # metrics are flushed four times a second
    after = scrape(url)
    samples = [sample for sample in read(tmp_path / "samples.jsonl") if sample.complete]
    assert len(samples) >= 40
    for metric, seen in ((FIRST_TOKEN, [s.ttft or 0.0 for s in samples]), (REQUEST_LATENCY, [s.e2e for s in samples])):
        exact, read_off = statistics.quantiles(seen, n=20)[-1], histogram_p95(metric, before, after)
        assert abs(bucket_of(metric, exact) - bucket_of(metric, read_off)) <= 1, (metric.name, exact, read_off)
