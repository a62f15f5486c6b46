"""The same prompts through a real tritonserver over gRPC, streaming, at one stream, in turn with the engine in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bench.lab import Lab, Setting
from builder.bench.prompts import Prompt
from builder.bench.spread import Spread
from builder.errors import ServeError
from builder.repository.ensemble import ModelNames
from builder.serve.client import Parameters, generate
from builder.serve.ports import free_ports
from builder.serve.processes import server_processes
from builder.serve.stub import memory, stub_process
from builder.serve.triton import Triton

HOST = "127.0.0.1"
WARM_UP = Prompt("facts", "warm-up", "Which number comes after six?")  # none of the timed prompts: those would be cached
WARM_UP_TOKENS = 8
CLIENT = "client"


@dataclass(frozen=True)
class Stream:
    """One streamed answer as its client saw it, in seconds. Decoding runs from the first chunk to the last."""

    tokens: int
    time_to_first_token: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class TritonResult:
    """`share`: tokens per second through Triton over those in process, for the same prompt and tokens. Peak in bytes."""

    setting: Setting
    tokens_per_second: Spread
    in_process: Spread
    share: Spread
    time_to_first_token: Spread  # seconds; the opening all prompts share (of a chat template) comes from the server's prefix cache
    ready_seconds: float  # from starting the server until the ensemble answers
    peak_memory: int | None  # of the process that decodes; None where it cannot be read
    cpu: Mapping[str, float]  # seconds of CPU a token, of the client and of each process of the server: what streaming takes from decoding

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.setting.method,
            "k": self.setting.draft_tokens,
            "tok_s": self.tokens_per_second.to_json(),
            "in_process_tok_s": self.in_process.to_json(),
            "share": self.share.to_json(),
            "ttft_ms": self.time_to_first_token.median * 1e3,
            "ready_seconds": self.ready_seconds,
            "peak_memory_bytes": self.peak_memory,
            "cpu_ms_per_token": {name: 1e3 * seconds for name, seconds in self.cpu.items()},
        }


def measure_triton(
    lab: Lab,
    repository: Path,
    pipeline: str,
    setting: Setting,
    prompts: Sequence[Prompt],
    tokens: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> TritonResult:
    """`setting` is that of the newest published version, which the server decodes with. A server of its own, on free ports, is ended after.

    Whole answers of `tokens` tokens are compared, so that both sides do the same work. Raises ServeError when Triton fails, and
    RequestError when a prompt does not fit.
    """
    ports = free_ports()
    on_progress("starting Triton")
    began = time.perf_counter()
    with Triton(repository, pipeline, ports, host=HOST) as server:
        ready = time.perf_counter() - began
        url = f"{HOST}:{ports['grpc']}"
        ask(url, pipeline, WARM_UP, WARM_UP_TOKENS, lab.parts.tokenizer.chats)
        streams, inside, cpu = [], [], Counter[str]()
        for number, prompt in enumerate(prompts, 1):
            on_progress(f"Triton: {prompt.name} ({number} of {len(prompts)})")
            inside.append(lab.answer(setting, prompt.ids(lab.parts.tokenizer), tokens).whole_tokens_per_second)
            before = cpu_seconds(ports["metrics"])
            streams.append(ask(url, pipeline, prompt, tokens, lab.parts.tokenizer.chats))
            cpu.update({name: seconds - before.get(name, 0.0) for name, seconds in cpu_seconds(ports["metrics"]).items()})
        peak = peak_memory(server, ModelNames.of(pipeline).decode)
    return TritonResult(
        setting,
        Spread.of(stream.tokens_per_second for stream in streams),
        Spread.of(inside),
        Spread.of(stream.tokens_per_second / alone for stream, alone in zip(streams, inside, strict=True)),
        Spread.of(stream.time_to_first_token for stream in streams),
        ready,
        peak,
        {name: seconds / sum(stream.tokens for stream in streams) for name, seconds in cpu.items()},
    )


def cpu_seconds(metrics_port: int) -> dict[str, float]:
    """So far, of this process (the client) and of those of the server with this metrics port."""
    return {CLIENT: time.process_time()} | {use.name: use.cpu_seconds for use in server_processes(metrics_port)}


def ask(url: str, model: str, prompt: Prompt, tokens: int, chat: bool) -> Stream:
    """One greedy answer of `tokens` tokens, streamed."""
    parameters: Parameters = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt.text}]} if chat else {"prompt": prompt.text}
    began = time.perf_counter()
    chunks = [(time.perf_counter(), chunk) for chunk in generate(url, model, parameters=parameters, **asked)]
    if not chunks or chunks[-1][1].usage is None:
        raise ServeError("the answer ended before its last part", where=model, mend="Look into the server's log")
    (first, _), (last, end) = chunks[0], chunks[-1]
    return Stream(int((end.usage or {})["completion_tokens"]), first - began, last - first)


def peak_memory(server: Triton, model: str) -> int | None:
    """Most resident bytes so far of the process that runs `model` for this server."""
    process = stub_process(server, model)
    return memory(process, "VmHWM") if process else None
