"""From a version of trtllm-engine to its decode loop: two models of the same server, called by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

from builder.errors import RepositoryError
from builder.plan.context import PlanContext
from builder.plan.trtllm.flags import roles
from builder.repository.engine_client import Connection, EngineClient
from builder.repository.exits import EXITS, open_pair_exit
from builder.repository.layout import GRPC_ADDRESS, TOKENIZER_FOLDER
from builder.repository.settings import engine_settings
from builder.repository.tokenizer import eos_token_ids, load_tokenizer
from builder.repository.trtllm_configs import EngineModels
from builder.runtime.observer import Observer
from builder.runtime.pair_engine import PairEngine
from builder.spec.addresses import bracketed, reachable
from builder.spec.pipeline import PipelineSpec

PAIR = "pair"  # folder inside a version of `<p>_decode`
PAIR_FILE = "pair.json"  # in it: what the loop must know of engines that it does not load


def write_pair(folder: Path, context: PlanContext) -> None:
    known = {"vocab_size": context.target.vocab_size, "models": list(roles(context))}
    (folder / PAIR_FILE).write_text(json.dumps(known) + "\n", encoding="utf-8")


def open_pair(version_folder: Path, spec: PipelineSpec, *, observer: Observer | None = None) -> PairEngine:
    """The decode loop of a version folder, not started, with early exit where the version was calibrated for it. RepositoryError or
    EngineError for a folder that is not whole.

    The models are called when requests come: they may load after this one.
    """
    path, tokenizer = version_folder / PAIR / PAIR_FILE, version_folder / TOKENIZER_FOLDER
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"cannot be read ({error})", where=str(path), mend="Run `builder build` again") from error
    names, server = EngineModels.of(spec.metadata.name), Connection(grpc_address(spec))
    ends, exits = eos_token_ids(tokenizer), version_folder / EXITS
    return PairEngine(
        EngineClient(server, names.target),
        EngineClient(server, names.draft) if "draft" in known["models"] else None,
        engine_settings(spec),
        vocab_size=known["vocab_size"],
        eos_token_ids=ends,
        draft_logits=spec.engine.trt.draft_logits,
        exit_at=open_pair_exit(exits, ends) if exits.is_dir() else None,
        tokenizer=load_tokenizer(tokenizer),
        observer=observer,
        close=server.close,
    )


def grpc_address(spec: PipelineSpec) -> str:
    """Of the server that runs this very process: as `builder serve` says, else as launch.sh starts it."""
    return os.environ.get(GRPC_ADDRESS) or f"{bracketed(reachable(spec.serving.host))}:{spec.serving.grpc_port}"
