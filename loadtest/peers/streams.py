"""Total speed of another engine with many streams at once: continuous batching of OpenVINO GenAI and of vLLM, llama.cpp's batches.

usage (vllm: .venv-vllm): .venv-peers/bin/python loadtest/peers/streams.py --peer openvino --model MODEL.gguf --prompts PROMPTS.json \\
           --tokens 128 --streams 4,8,16 --out STREAMS.json
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # run as a script: this folder's names must not hide packages, and `builder` is not installed here
    sys.path[0] = str(ROOT)

from builder.errors import TandemError  # noqa: E402 - after the path is set
from builder.text.tokenizer import Tokenizer  # noqa: E402
from builder.weights.tokenizer_files import open_tokenizer  # noqa: E402
from loadtest.peers.entry import write_entries  # noqa: E402
from loadtest.peers.errors import PeersError  # noqa: E402
from loadtest.peers.prompts import read_prompts  # noqa: E402

# Where each peer is; its module is imported when it is measured, because it needs the peer's package.
PEERS = {
    "openvino": "loadtest.peers.openvino_streams:OpenVinoStreams",
    "llama.cpp": "loadtest.peers.llama_cpp_streams:LlamaCppStreams",
    "vllm": "loadtest.peers.vllm_streams:VllmStreams",
}


def main() -> int:
    arguments = _parser().parse_args()
    try:
        levels = _levels(arguments.streams)
        prompts = read_prompts(arguments.prompts)
        tokenizer = Tokenizer(open_tokenizer(str(arguments.model.resolve()), Path("/")).tokenizer_json)
        ids = [tokenizer.encode(prompt.text, add_special_tokens=False) for prompt in prompts]
        options = (arguments.model.resolve(), ids, arguments.tokens, levels, arguments.threads)
        write_entries(arguments.out, measure(arguments.peer, *options))
    except TandemError as error:
        print(error.paragraph(), file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure another engine with many streams of the same prompts at once.")
    parser.add_argument("--peer", choices=PEERS, required=True, help="which; each in a process of its own, so that no thread pool spins")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file or Hugging Face folder")
    parser.add_argument("--prompts", type=Path, required=True, help='JSON list of {"class": ..., "text": ...}, chat template applied')
    parser.add_argument("--tokens", type=int, default=128, help="length of each answer, in tokens")
    parser.add_argument("--streams", default="4,8,16", help="how many at once, numbers separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    return parser


def _levels(text: str) -> list[int]:
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise PeersError(f"{text} is no list of numbers", where="--streams", mend="Write numbers such as 4,8,16") from error
    if min(levels) < 1:
        raise PeersError("the number must be at least 1", where="--streams", mend="Give positive numbers")
    return levels


def measure(peer: str, model: Path, ids: Sequence[list[int]], tokens: int, levels: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """One entry a level; total tokens per second from asking to the last token, greedy, every answer of `tokens` tokens.

    The peer is loaded once and warmed up. Raises PeersError when that fails.
    """
    module, name = PEERS[peer].split(":")
    streams = getattr(importlib.import_module(module), name)(model, ids, tokens, max(levels), threads)
    streams.seconds(max(levels), 4)  # warm-up: buffers of every size are there
    entries = []
    for level in levels:
        took, made = streams.seconds(level, tokens)
        entries.append({"peer": peer, "version": streams.version, "streams": level, "tok_s": made / took})
        print(f"{peer}, {level} streams: {made / took:.0f} tok/s", file=sys.stderr, flush=True)
    return entries


if __name__ == "__main__":
    sys.exit(main())
