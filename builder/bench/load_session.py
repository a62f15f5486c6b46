"""One run of `builder bench --concurrency` on a published version."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.bench.concurrency import measure_loads, measure_probes
from builder.bench.lab import Lab, Setting
from builder.bench.load_report import LoadReport, PeerLoad
from builder.bench.peers import LIMIT_SECONDS, PYTHON, ROOT, VLLM_PYTHON, require_peers
from builder.bench.prompts import Prompt, kinds, select
from builder.bench.report import Machine
from builder.errors import EngineError, SpecError
from builder.repository.models.folder import read_spec
from builder.repository.versions import Version
from builder.spec.load import LoadedPipeline
from builder.weights.source import resolve

MOST_STREAMS = 256
PEER_STREAMS = (4, 8, 16)
PEERS = {"openvino": PYTHON, "llama.cpp": PYTHON, "vllm": VLLM_PYTHON}
SCRIPT = ROOT / "loadtest" / "peers" / "streams.py"


@dataclass(frozen=True)
class LoadOptions:
    levels: tuple[int, ...]  # streams at once
    tokens: int = 128
    blocks: int = 3
    classes: tuple[str, ...] | None = None
    peers: bool = False

    def check(self) -> None:
        """SpecError for a level out of range or an unknown class of prompts."""
        for level in self.levels:
            if not 1 <= level <= MOST_STREAMS:
                raise SpecError(f"cannot run {level} streams", where="--concurrency", mend=f"Give numbers from 1 to {MOST_STREAMS}")
        self.prompts()

    def prompts(self) -> tuple[Prompt, ...]:
        return select(self.classes or kinds())


def run_load(
    loaded: LoadedPipeline, version: Version, options: LoadOptions, on_progress: Callable[[str], None] = lambda _: None
) -> LoadReport:
    """Raises SpecError for options out of range, EngineError when the version or a peer fails, CheckError when peers are not installed."""
    options.check()
    if options.peers:
        require_peers(*PEERS.values())
    spec = read_spec(version.decode_folder)
    on_progress("loading the engines")
    lab = Lab.open(version.decode_folder, spec)
    prompts = options.prompts()
    ids = [lab.fit(prompt.ids(lab.parts.tokenizer), options.tokens) for prompt in prompts]
    speculation = spec.speculation
    setting = None if speculation.proposer == "none" else Setting(speculation.max_draft_tokens, speculation.proposer)
    loads = measure_loads(lab, ids, options.tokens, sorted(set(options.levels)), setting, options.blocks, on_progress)
    on_progress("neighbours")
    probes = measure_probes(lab, [token for prompt in ids for token in prompt])
    peers: Sequence[PeerLoad] = ()
    if options.peers:
        on_progress("other engines")
        model = resolve(loaded.spec.target.weights, loaded.base).path
        peers = [load for peer in PEERS for load in _peer(lab, peer, model, prompts, options.tokens)]
    machine = Machine.of(lab.parts.target.instruction_set, spec.engine.threads)
    return LoadReport(version.pipeline, version.number, machine, options.tokens, options.blocks, tuple(loads), probes, tuple(peers))


def _peer(lab: Lab, peer: str, model: Path, prompts: Sequence[Prompt], tokens: int) -> list[PeerLoad]:
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as folder:
        asked, out = Path(folder) / "prompts.json", Path(folder) / "out.json"
        texts = [{"class": prompt.kind, "text": prompt.rendered(lab.parts.tokenizer)} for prompt in prompts]
        asked.write_text(json.dumps(texts), encoding="utf-8")
        levels = ",".join(map(str, PEER_STREAMS))
        options = {"--peer": peer, "--model": model, "--prompts": asked, "--tokens": tokens, "--streams": levels, "--out": out}
        command = [str(PEERS[peer]), str(SCRIPT), *(str(part) for option in options.items() for part in option)]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS)
            entries = json.loads(out.read_text(encoding="utf-8"))
        except subprocess.CalledProcessError as error:
            raise EngineError(f"{peer} failed: {error.stderr.strip()[-500:]}", where=str(SCRIPT.relative_to(ROOT))) from error
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            raise EngineError(f"{peer} gave no result ({error})", where=str(SCRIPT.relative_to(ROOT))) from error
        return [PeerLoad(entry["peer"], entry["version"], entry["streams"], entry["tok_s"]) for entry in entries]
