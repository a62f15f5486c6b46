"""One run of the demo: step times first, on an idle machine, then a server of its own and the comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from builder.bench.calibration import measure_step_times
from builder.demo.comparison import Answer, Comparison, compare
from builder.demo.prompts import Prompt
from builder.errors import CheckError
from builder.plan.cost import StepTimes
from builder.repository.live import serving_version
from builder.repository.models.folder import read_spec
from builder.serve.client import generate
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.spec.load import LoadedPipeline

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Demo:
    pipeline: str
    version: int
    draft_tokens: int  # K
    times: StepTimes  # seconds
    comparisons: tuple[Comparison, ...]

    @property
    def identical(self) -> bool:
        return all(comparison.identical for comparison in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "draft_tokens": self.draft_tokens,
            "step_times_ms": {name: getattr(self.times, name) * 1e3 for name in ("plain", "draft", "verify")},
            "identical": self.identical,
            "prompts": [comparison.to_json() for comparison in self.comparisons],
        }


def run(loaded: LoadedPipeline, repository: Path, *, on_progress: Callable[[str], None] = lambda _: None) -> Demo:
    """Compare on the newest version of the pipeline. `on_progress` is told what comes next.

    Raises RepositoryError when nothing is published, CheckError when the version does not speculate, ServeError when Triton fails.
    """
    version = serving_version(repository, loaded.spec.metadata.name)
    spec = read_spec(version.decode_folder)  # as built, whatever the file says by now
    speculation = spec.speculation
    if speculation.proposer == "none":
        raise CheckError(
            f"version {version.number} of {version.pipeline} decodes plainly only, so there is nothing to compare",
            where="speculation.proposer",
            mend="Choose a proposer and build again",
        )
    on_progress("measuring step times")
    times = measure_step_times(version.decode_folder, spec)
    on_progress("starting Triton")
    ports = free_ports(HOST)
    comparisons = []
    with Triton(repository, version.pipeline, ports, host=HOST):
        ask = partial(_ask, f"{HOST}:{ports['grpc']}", version.pipeline)
        on_progress("warming up")
        for comparison in compare(ask, times, speculation.max_draft_tokens):
            comparisons.append(comparison)
            on_progress(f"{comparison.prompt.name} done")
    return Demo(version.pipeline, version.number, speculation.max_draft_tokens, times, tuple(comparisons))


def _ask(url: str, model: str, prompt: Prompt, speculation: bool, max_tokens: int) -> Answer:
    """A greedy answer to a chat prompt over gRPC, in one response."""
    parameters = {"max_tokens": max_tokens, "temperature": 0, "speculation": "on" if speculation else "off", "stream": False}
    messages = [{"role": "user", "content": prompt.text}]
    start = time.perf_counter()
    for chunk in generate(url, model, messages=messages, parameters=parameters):
        seconds = time.perf_counter() - start
        if chunk.usage is not None and chunk.decode_stats is not None:
            return Answer(chunk.text, int(chunk.usage["completion_tokens"]), seconds, chunk.decode_stats)
    raise CheckError(
        f"the answer to prompt {prompt.name} came without usage and decode_stats", where=model, mend="Build the pipeline again"
    )
