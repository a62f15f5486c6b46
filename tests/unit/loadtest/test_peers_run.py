"""The out file's contract and the command's errors, with no peer installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from loadtest.peers.entry import Failed, Measured
from loadtest.peers.trace import Trace, summarise

RUN = Path(__file__).parents[3] / "loadtest" / "peers" / "run.py"


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    model, prompts = folder / "model.gguf", folder / "prompts.json"
    model.write_bytes(b"GGUF")
    prompts.write_text(json.dumps([{"class": "facts", "text": "a"}]), encoding="utf-8")
    named = ["--model", str(model), "--prompts", str(prompts), "--out", str(folder / "out.json")]
    return subprocess.run([sys.executable, str(RUN), *named, *options], capture_output=True, text=True, check=False)


def test_a_measured_entry_has_the_keys_of_the_contract() -> None:
    trace = Trace("facts", 8, 0.0, [(1.0, 1), (2.0, 4)], rounds=2)
    entry = Measured("llama.cpp", "ngram", "bf16", "1.0", summarise([[trace]])).to_json()
    assert entry == {
        "peer": "llama.cpp",
        "mode": "ngram",
        "precision": "bf16",
        "tok_s": 4.0,
        "ttft_ms": 1000.0,
        "prompt_tok_s": 8.0,
        "acceptance_length": 2.0,
        "by_class": {"facts": 4.0},
        "version": "1.0",
    }


def test_a_failed_entry_has_an_error_instead_of_numbers() -> None:
    assert Failed("openvino", "plain", "why").to_json() == {"peer": "openvino", "mode": "plain", "error": "why"}


def test_a_peer_that_cannot_run_gives_an_entry_with_its_error_and_a_line_on_stderr(tmp_path: Path) -> None:
    done = _run(tmp_path, "--peers", "llama.cpp", "--modes", "plain")
    (entry,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert done.returncode == 0
    assert (entry["peer"], entry["mode"]) == ("llama.cpp", "plain")
    assert entry["error"]
    assert "llama.cpp plain: did not run: " in done.stderr


def test_an_unknown_peer_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    done = _run(tmp_path, "--peers", "lama.cpp")
    assert done.returncode == 2
    assert done.stderr == "--peers: lama.cpp is not known. Did you mean llama.cpp.\n"


def test_a_number_below_one_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = _run(tmp_path, "--draft-tokens", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("--draft-tokens: the number must be at least 1.")
