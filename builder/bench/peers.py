"""Other engines on the same prompts (loadtest/peers), each run between two measurements of our own."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bench.lab import PLAIN, Lab, Setting
from builder.bench.prompts import Prompt
from builder.errors import CheckError, EngineError

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"  # of the peer with many streams only
SCRIPT = ROOT / "loadtest" / "peers" / "run.py"
NAMES = ("llama.cpp", "openvino", "transformers")
LIMIT_SECONDS = 3600


@dataclass(frozen=True)
class Speeds:
    """Our own tokens per second, medians over the prompts."""

    plain: float
    speculative: float


@dataclass(frozen=True)
class Peer:
    """One peer in one mode. `ours` is measured before and after it: plain against its plain, our best speculation against its own."""

    peer: str
    mode: str  # plain | speculative | ngram
    precision: str
    tokens_per_second: float
    ours: float
    ours_mode: str  # plain | speculative
    detail: dict[str, Any]  # what the peer's own report says

    @property
    def ours_over_peer(self) -> float:
        return self.ours / self.tokens_per_second if self.tokens_per_second else 0.0

    def to_json(self) -> dict[str, Any]:
        head = {"peer": self.peer, "mode": self.mode, "precision": self.precision, "tok_s": self.tokens_per_second}
        return self.detail | head | {"ours_tok_s": self.ours, "ours_mode": self.ours_mode, "ours_over_peer": self.ours_over_peer}


def require_peers(*pythons: Path) -> None:
    """CheckError when an environment of the peers is not made."""
    for path in (*pythons, SCRIPT):
        if not path.exists():
            raise CheckError("the peers are not installed", where=str(path.relative_to(ROOT)), mend="Run `make peers` in a checkout first")


def measure_peers(
    lab: Lab,
    model: Path,
    best: Setting,
    prompts: Sequence[Prompt],
    tokens: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Peer]:
    """Every peer in every mode on the same prompts; `model` is the file or folder of the target's weights.

    Raises CheckError when the peers are not installed, EngineError when their run fails. A peer that cannot run in a mode is left out.
    """
    require_peers(PYTHON)
    before = our_speeds(lab, best, prompts, tokens)
    rows = []
    for name in NAMES:
        on_progress(f"peer {name}")
        entries = _run_peer(lab, name, model, prompts, tokens)
        for entry in entries:
            if "error" in entry:
                on_progress(f"{name} {entry['mode']} did not run: {entry['error']}")
        after = our_speeds(lab, best, prompts, tokens)
        mean = Speeds((before.plain + after.plain) / 2, (before.speculative + after.speculative) / 2)
        rows += compare(entries, mean)
        before = after
    return rows


def our_speeds(lab: Lab, best: Setting, prompts: Sequence[Prompt], tokens: int) -> Speeds:
    ids = [lab.fit(prompt.ids(lab.parts.tokenizer), tokens) for prompt in prompts]
    rates: dict[Setting, list[float]] = {PLAIN: [], best: []}
    for prompt_ids in ids:
        for setting, taken in rates.items():
            taken.append(lab.answer(setting, prompt_ids, tokens).tokens_per_second)
    return Speeds(statistics.median(rates[PLAIN]), statistics.median(rates[best]))


def compare(entries: Sequence[dict[str, Any]], ours: Speeds) -> list[Peer]:
    """A row for each entry that has numbers; a plain peer is also compared with our speculation."""
    rows = []
    for entry in entries:
        if "tok_s" not in entry:
            continue
        mode = entry["mode"]
        for our_mode in ("plain", "speculative") if mode == "plain" else ("speculative",):
            rows.append(Peer(entry["peer"], mode, entry["precision"], entry["tok_s"], getattr(ours, our_mode), our_mode, entry))
    return rows


def _run_peer(lab: Lab, name: str, model: Path, prompts: Sequence[Prompt], tokens: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as folder:
        asked, out = Path(folder) / "prompts.json", Path(folder) / "out.json"
        texts = [{"class": prompt.kind, "text": prompt.rendered(lab.parts.tokenizer)} for prompt in prompts]
        asked.write_text(json.dumps(texts), encoding="utf-8")
        options = {"--model": model, "--prompts": asked, "--tokens": tokens, "--rounds": 1, "--peers": name, "--out": out}
        command = [str(PYTHON), str(SCRIPT), *(str(part) for option in options.items() for part in option)]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS)
            entries: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        except subprocess.CalledProcessError as error:
            raise EngineError(f"{name} failed: {error.stderr.strip()[-500:]}", where=str(SCRIPT.relative_to(ROOT))) from error
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            raise EngineError(f"{name} gave no result ({error})", where=str(SCRIPT.relative_to(ROOT))) from error
        return entries
