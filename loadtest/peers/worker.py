"""One peer in one mode, in a process of its own, so that no thread pool or memory of another peer is in its way.

usage: python -m loadtest.peers.worker JOB.json RESULT.json (run.py starts it)
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.text.tokenizer import Tokenizer
from builder.weights.tokenizer_files import open_tokenizer
from loadtest.peers.decoder import Decoder, Setup, rounded_context
from loadtest.peers.entry import Measured, Mode
from loadtest.peers.prompts import Prompt, read_prompts
from loadtest.peers.trace import Trace, summarise

# Where each peer's decoder is; its module is imported in the worker only, because it needs the peer's package.
DECODERS = {
    "llama.cpp": "loadtest.peers.llama_cpp_peer:LlamaCppDecoder",
    "openvino": "loadtest.peers.openvino_peer:OpenVinoDecoder",
    "transformers": "loadtest.peers.transformers_peer:TransformersDecoder",
}


@dataclass(frozen=True)
class Job:
    """What one worker measures; paths are absolute. `tokens` is the longest answer, `rounds` how often each prompt is asked."""

    peer: str
    mode: Mode
    model: str
    prompts: str
    tokens: int
    rounds: int
    threads: int
    draft_tokens: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decoder_class(peer: str) -> Callable[[Setup], Decoder]:
    """Import the peer's decoder. Raises ImportError when its package is not installed."""
    module, name = DECODERS[peer].split(":")
    found: Callable[[Setup], Decoder] = getattr(importlib.import_module(module), name)
    return found


def measure(job: Job, load: Callable[[Setup], Decoder]) -> Measured:
    """Load the peer, warm it up with the first prompt, then ask every prompt `rounds` times.

    All peers get the same token ids, from this project's tokenizer. Raises TandemError when model or prompts cannot be read.
    """
    prompts = read_prompts(Path(job.prompts))
    files = open_tokenizer(job.model, Path("/"))
    tokenizer = Tokenizer(files.tokenizer_json)
    ids = [tokenizer.encode(prompt.text, add_special_tokens=False) for prompt in prompts]
    context = rounded_context(max(map(len, ids)) + job.tokens + job.draft_tokens + 1)
    decoder = load(Setup(Path(job.model), job.mode, job.threads, job.draft_tokens, context, files.eos_token_ids))
    _trace(decoder, prompts[0], ids[0], job.tokens)  # warm-up: pages are read, kernels chosen, buffers allocated
    traces: list[list[Trace]] = [[] for _ in prompts]
    for number in range(job.rounds):
        for place, prompt in enumerate(prompts):
            trace = _trace(decoder, prompt, ids[place], job.tokens)
            traces[place].append(trace)
            rate = f"{trace.decode_tok_s:.1f} tok/s" if trace.decode_tok_s else "too short"
            print(f"{job.peer} {job.mode}: round {number + 1}, prompt {place + 1} of {len(prompts)}: {rate}", flush=True)
    return Measured(job.peer, job.mode, decoder.precision, decoder.version, summarise(traces))


def _trace(decoder: Decoder, prompt: Prompt, ids: list[int], tokens: int) -> Trace:
    trace = Trace(prompt.kind, len(ids))
    trace.start()
    trace.rounds = decoder.decode(ids, tokens, trace.arrive)
    return trace


def main() -> None:
    job_file, result_file = (Path(argument) for argument in sys.argv[1:3])
    job = Job(**json.loads(job_file.read_text(encoding="utf-8")))
    result = measure(job, decoder_class(job.peer))
    result_file.write_text(json.dumps(result.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
