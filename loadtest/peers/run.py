"""Measure the peers on the same prompts: plain, with their own draft model, and with prompt lookup.

usage: .venv-peers/bin/python loadtest/peers/run.py --model MODEL.gguf --prompts PROMPTS.json --tokens 128 --rounds 3 \\
           --peers llama.cpp,openvino,transformers --out PEERS.json
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # run as a script: this folder's names must not hide packages, and `builder` is not installed here
    sys.path[0] = str(ROOT)

from builder.errors import TandemError  # noqa: E402 - after the path is set
from loadtest.peers.entry import MODES, Failed, write_entries  # noqa: E402
from loadtest.peers.errors import PeersError  # noqa: E402
from loadtest.peers.prompts import read_prompts  # noqa: E402
from loadtest.peers.table import markdown  # noqa: E402
from loadtest.peers.worker import DECODERS, Job  # noqa: E402

_WORKER_LIMIT_S = 1800


def main() -> int:
    arguments = _parser().parse_args()
    try:
        jobs = _jobs(arguments)
        entries = [_run(job) for job in jobs]
        write_entries(arguments.out, entries)
    except TandemError as error:
        print(error.paragraph(), file=sys.stderr)
        return error.exit_code
    print(markdown(entries), file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure other engines on the same prompts, each plain and with its own speculation.")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file (a Hugging Face folder serves transformers only)")
    parser.add_argument("--prompts", type=Path, required=True, help='JSON list of {"class": ..., "text": ...}, chat template applied')
    parser.add_argument("--tokens", type=int, default=128, help="longest answer, in tokens")
    parser.add_argument("--rounds", type=int, default=3, help="how often each prompt is asked")
    parser.add_argument("--peers", default=",".join(DECODERS), help="which, separated by commas (default: all)")
    parser.add_argument("--modes", default=",".join(MODES), help="which, separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each peer")
    parser.add_argument("--draft-tokens", type=int, default=4, help="tokens drafted a round")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    return parser


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    """One job per peer and mode. Raises PeersError when an option, the model or the prompts file is wrong, before anything runs."""
    for name in ("tokens", "rounds", "threads", "draft_tokens"):
        if getattr(arguments, name) < 1:
            raise PeersError("the number must be at least 1", where=f"--{name.replace('_', '-')}", mend="Give a positive number")
    if not arguments.model.exists():
        raise PeersError("the model does not exist", where=str(arguments.model), mend="Give a GGUF file or a Hugging Face folder")
    read_prompts(arguments.prompts)
    return [
        Job(
            peer=peer,
            mode=mode,
            model=str(arguments.model.resolve()),
            prompts=str(arguments.prompts.resolve()),
            tokens=arguments.tokens,
            rounds=arguments.rounds,
            threads=arguments.threads,
            draft_tokens=arguments.draft_tokens,
        )
        for peer in _chosen("--peers", arguments.peers, tuple(DECODERS))
        for mode in _chosen("--modes", arguments.modes, MODES)
    ]


def _chosen(option: str, text: str, known: Sequence[Any]) -> list[Any]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            mend = f"Did you mean {close[0]}" if close else f"Known are {', '.join(known)}"
            raise PeersError(f"{name} is not known", where=option, mend=mend)
    if not names:
        raise PeersError("nothing is chosen", where=option, mend=f"Known are {', '.join(known)}")
    return names


def _run(job: Job) -> dict[str, Any]:
    """Run one worker; what stops it becomes an entry with its error, and the other peers go on."""
    print(f"{job.peer} {job.mode}: starting", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        job_file, result_file, log_file = (Path(folder) / name for name in ("job.json", "result.json", "worker.log"))
        job_file.write_text(json.dumps(job.to_json()), encoding="utf-8")
        command = [sys.executable, "-m", "loadtest.peers.worker", str(job_file), str(result_file)]
        error = _watch(command, _environment(job.threads), log_file)
        if error is None:
            entry: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
            return entry
    print(f"{job.peer} {job.mode}: did not run: {error}", file=sys.stderr)
    return Failed(job.peer, job.mode, error).to_json()


def _watch(command: list[str], environment: dict[str, str], log_file: Path) -> str | None:
    """Run `command`; what it prints is progress and goes to stderr. Returns None when it succeeded, else its last line of stderr."""
    try:
        with log_file.open("wb") as log:
            subprocess.run(command, env=environment, cwd=ROOT, stdout=sys.stderr, stderr=log, check=True, timeout=_WORKER_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"it took longer than {_WORKER_LIMIT_S} s"
    except subprocess.CalledProcessError as error:
        lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the worker ended with {error.returncode}"
    return None


def _environment(threads: int) -> dict[str, str]:
    """The worker's environment: as many threads as asked for, nothing fetched, no thread pool of the tokenizer."""
    limits = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return os.environ | limits | {"PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    sys.exit(main())
