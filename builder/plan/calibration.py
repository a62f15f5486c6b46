"""What `builder calibrate` left beside pipeline.yaml: which exit heads and thresholds there are, and what they were made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.errors import SpecError
from builder.files import write_atomically
from builder.spec.load import LoadedPipeline
from builder.spec.pipeline import PipelineSpec
from builder.weights import open_checkpoint, open_tokenizer
from builder.weights.source import available


@dataclass(frozen=True)
class CalibrationRecord:
    """`folder` in the engine cache, named by `fingerprint`. `made_for` is everything that makes the thresholds invalid when it changes."""

    folder: str
    fingerprint: str
    made_for: Mapping[str, Any]
    bounded: bool  # thresholds were found whose disagreement is bounded
    guarantee: str

    def stale(self, wanted: Mapping[str, Any]) -> list[str]:
        """What differs now from what it was made for."""
        return [name for name, value in wanted.items() if self.made_for.get(name) != value]


@dataclass(frozen=True)
class ExitStanding:
    """What a pipeline with early exit has and needs. `calibrate` is the command that makes it."""

    record: CalibrationRecord | None
    wanted: Mapping[str, Any]  # made_for of a calibration that fits the pipeline as it is
    calibrate: str

    @property
    def stale(self) -> list[str]:
        """What changed since; empty without a record."""
        return self.record.stale(self.wanted) if self.record else []


def exit_standing(loaded: LoadedPipeline) -> ExitStanding | None:
    """None where the pipeline has no early exit, or none that its backend could have."""
    spec, command = loaded.spec, f"builder calibrate {loaded.path}"
    if spec.early_exit.mode == "none":
        return None
    if spec.engine.chosen_backend == "torch_aot":
        return ExitStanding(read_calibration(loaded.path), wanted_calibration(loaded), command)
    if spec.engine.chosen_backend == "trtllm-engine" and spec.early_exit.mode == "answer":
        return ExitStanding(read_calibration(loaded.path), wanted_engine_calibration(loaded), f"{command} --grpc HOST:PORT")
    return None  # and the rules refuse it


def record_file(pipeline: Path) -> Path:
    """smollm2-early-exit.yaml -> smollm2-early-exit.calibration.json"""
    return pipeline.with_suffix(".calibration.json")


def write_calibration(pipeline: Path, record: CalibrationRecord) -> None:
    """Complete or not at all."""
    write_atomically(record_file(pipeline), json.dumps(asdict(record), indent=2) + "\n")


def read_calibration(pipeline: Path) -> CalibrationRecord | None:
    """None when there is none. SpecError when it cannot be read."""
    path = record_file(pipeline)
    if not path.is_file():
        return None
    try:
        return CalibrationRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        mend = f"Remove it and run `builder calibrate {pipeline}` again"
        raise SpecError(f"the calibration cannot be read ({error})", where=str(path), mend=mend) from None


def wanted_calibration(loaded: LoadedPipeline) -> dict[str, Any]:
    """`made_for` of a calibration that would fit the pipeline as it is."""
    spec = loaded.spec
    target = open_checkpoint(spec.target.weights, loaded.base)
    tokenizer = open_tokenizer(spec.target.weights, loaded.base).fingerprint
    return made_for(spec, target.fingerprint, tokenizer, target.config.num_layers)


def wanted_engine_calibration(loaded: LoadedPipeline) -> dict[str, Any]:
    """`engines_made_for` of a calibration that would fit. Weights that are not on this machine are not compared: `build` has them."""
    spec, base, known = loaded.spec, loaded.base, {}
    if available(spec.target.weights, base):
        known["target.weights"] = open_checkpoint(spec.target.weights, base).fingerprint
        known["tokenizer"] = open_tokenizer(spec.target.weights, base).fingerprint
    return known | engines_made_for(spec)


def engines_made_for(spec: PipelineSpec) -> dict[str, Any]:
    """What two served engines of trtllm-engine are made of, but for the fingerprints of weights and tokenizer."""
    draft, trt = spec.used_draft, spec.engine.trt
    return {
        "target.dtype": spec.target.dtype,
        "draft.layers": draft.layers if draft else None,
        "draft.quantization": draft.quantization.model_dump(mode="json") if draft else None,
        "engine.backend": spec.engine.chosen_backend,
        "engine.tensorrt_llm.version": trt.version,
        "engine.tensorrt_llm.logits_dtype": trt.logits_dtype,
        **_asked_for(spec),
    }


def made_for(spec: PipelineSpec, weights: str, tokenizer: str, num_layers: int) -> dict[str, Any]:
    """`weights` and `tokenizer` are fingerprints."""
    exits = spec.early_exit
    layers = list(exits.exit_layers(num_layers))
    return {
        "target.weights": weights,
        "target.dtype": spec.target.dtype,
        "tokenizer": tokenizer,
        "early_exit.layers": ["auto", *layers] if exits.layers == "auto" else layers,  # of auto's, those that do not pay are dropped
        **_asked_for(spec),
    }


def _asked_for(spec: PipelineSpec) -> dict[str, Any]:
    return {
        "early_exit.max_pending": spec.early_exit.max_pending,
        "early_exit.protected_tokens": spec.early_exit.protected_tokens,
        "quality.max_disagreement": spec.quality.max_disagreement,
        "quality.confidence": spec.quality.confidence,
    }
