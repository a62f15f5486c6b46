"""From a version of trtllm-llmapi to its engine: arguments of tensorrt_llm.LLM as files, and the LLM made of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import yaml

from builder.errors import EngineError
from builder.plan.context import PlanContext
from builder.plan.trtllm.arguments import SPECULATIVE, Arguments, llm_arguments, plain_arguments
from builder.plan.trtllm.versions import line_of
from builder.repository.layout import TOKENIZER_FOLDER
from builder.repository.settings import engine_settings
from builder.repository.tokenizer import eos_token_ids, load_tokenizer
from builder.runtime.llmapi_engine import LlmApiEngine
from builder.runtime.observer import Observer
from builder.spec.pipeline import PipelineSpec

ARGUMENTS = "llm"  # folder inside a version of `<p>_decode`, beside those of target and draft
MODEL_YAML, PLAIN_YAML = "model.yaml", "plain.yaml"
_FOLDERS = {"target": "target", "draft": "draft"}
_MEND = "Serve on a GPU host with the TensorRT-LLM that engine.tensorrt_llm.version names"


def write_arguments(folder: Path, context: PlanContext) -> None:
    """model.yaml, and plain.yaml for the second instance without speculation; models are named from the version's folder."""
    texts = {MODEL_YAML: llm_arguments(context, _FOLDERS)}
    if context.draft_tokens and context.spec.engine.trt.plain_instance:
        texts[PLAIN_YAML] = plain_arguments(context, _FOLDERS)
    for name, arguments in texts.items():
        (folder / name).write_text(yaml.safe_dump(arguments, sort_keys=False), encoding="utf-8")


def open_llmapi(version_folder: Path, spec: PipelineSpec, *, observer: Observer | None = None) -> LlmApiEngine:
    """The engine of a version folder, not started. EngineError where TensorRT-LLM is missing, of another line, or refuses."""
    library = _library(spec)
    speculative = _load(library, version_folder, MODEL_YAML)
    plain = _load(library, version_folder, PLAIN_YAML) if (version_folder / ARGUMENTS / PLAIN_YAML).is_file() else None
    tokenizer = version_folder / TOKENIZER_FOLDER
    return LlmApiEngine(
        speculative,
        plain,
        library.SamplingParams,
        engine_settings(spec),
        vocab_size=json.loads((version_folder / "target" / "config.json").read_text(encoding="utf-8"))["vocab_size"],
        eos_token_ids=eos_token_ids(tokenizer),
        tokenizer=load_tokenizer(tokenizer),
        observer=observer,
    )


def read_arguments(version_folder: Path, name: str) -> Arguments:
    """Arguments of LLM() with the folders of the models made absolute."""
    arguments: Arguments = yaml.safe_load((version_folder / ARGUMENTS / name).read_text(encoding="utf-8"))
    arguments["model"] = str(version_folder / arguments["model"])
    speculative = arguments.get(SPECULATIVE, {})
    if "speculative_model" in speculative:
        speculative["speculative_model"] = str(version_folder / speculative["speculative_model"])
    return arguments


def _library(spec: PipelineSpec) -> Any:
    try:
        library = importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise EngineError(f"tensorrt_llm cannot be imported ({error})", where="engine.backend", mend=_MEND) from error
    wanted = spec.engine.trt.version
    if line_of(library.__version__) != line_of(wanted):
        raise EngineError(
            f"TensorRT-LLM {library.__version__} is installed, the version was made for {wanted}",
            where="engine.tensorrt_llm.version",
            mend="Set the version to what is installed and build again",
        )
    return library


def _load(library: Any, version_folder: Path, name: str) -> Any:
    try:
        return library.LLM(**read_arguments(version_folder, name))
    except Exception as error:  # its validators, CUDA and MPI fail in many ways
        raise EngineError(
            f"TensorRT-LLM cannot load it ({type(error).__name__}: {error})", where=str(version_folder), mend=_MEND
        ) from error
