"""A model with the tensors and manners of Triton's tensorrtllm backend, on the torch engine: a double for tests, not TensorRT-LLM.

It holds callers to the contract: sizes that agree, drafts within the engine's maximum, the outputs that must be asked for. What is in
flight advances in turn, a token or one verification each, as in-flight batching does. Parameters: `runner` and `kernels` (folders),
max_draft_len, max_seq_len, `pause_ms` (sleep in each turn) and `shift` (added to every token: a draft that is never right).
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from engine_double import EngineDouble

from builder.compile.torch_aot.library import LIBRARY
from builder.decoding.params import SamplingParams
from builder.runtime.runners.torch_aot import load_runner

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MUST_ASK = {"output_ids", "sequence_length"}


@dataclass
class Running:
    sender: Any
    replies: Iterator[tuple[list[int], torch.Tensor]]
    left: int  # tokens
    streams: bool
    logits: bool


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        config = json.loads(args["model_config"])
        given = {name: value["string_value"] for name, value in config["parameters"].items()}
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._logits = pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, "generation_logits")["data_type"])
        self._pause, self._shift = float(given.get("pause_ms", "0")) / 1000, int(given.get("shift", "0"))
        longest = int(given["max_seq_len"])
        runner = load_runner(Path(given["runner"]), Path(given["kernels"]) / LIBRARY, max_seq_len=longest + 32, threads=1)
        self._engine = EngineDouble(runner, max_draft_len=int(given["max_draft_len"]), max_seq_len=longest)
        counter = pb_utils.MetricFamily.COUNTER
        self._family = pb_utils.MetricFamily(name="contract_cancelled", description="Requests ended early", kind=counter)  # must live on
        self._cancelled = self._family.Metric(labels={"model": args["model_name"]})
        self._arrived: queue.SimpleQueue[Running | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._arrived.put(self._read(request, sender))
            except Exception as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), flags=FINAL)

    def finalize(self) -> None:
        self._arrived.put(None)
        self._thread.join()

    def _read(self, request: Any, sender: Any) -> Running:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        ids = given["input_ids"]
        if ids.ndim != 2 or len(ids) != 1:
            raise ValueError(f"input_ids {ids.shape}: a batch of one is expected")
        if int(given["input_lengths"].item()) != ids.shape[1]:
            raise ValueError(f"input_lengths {given['input_lengths']} and input_ids {ids.shape} disagree")
        if missing := MUST_ASK - set(request.requested_output_names()):
            raise ValueError(f"{sorted(missing)} must be present in list of output tensors")
        streams = bool(given["streaming"].item()) if "streaming" in given else False
        if streams and not self._decoupled:
            raise ValueError("streaming is only supported in decoupled mode")
        draft = given["draft_input_ids"][0].tolist() if "draft_input_ids" in given else []
        logits = torch.from_numpy(given["draft_logits"][0].astype(np.float32)) if "draft_logits" in given else None
        text, most = ids[0].tolist(), int(given["request_output_len"].item())
        self._engine.check(text, most, draft)
        seed = int(given["seed"].item()) if "seed" in given else None
        replies = self._engine.run(text, most, _sampling(given), seed, draft, logits)
        returns = "generation_logits" in request.requested_output_names() and bool(given["return_generation_logits"].item())
        return Running(sender, replies, 1 if draft else most, streams, returns)

    def _work(self) -> None:
        running: list[tuple[Running, list[int], list[torch.Tensor]]] = []
        while True:
            while not running or not self._arrived.empty():
                arrived = self._arrived.get()
                if arrived is None:
                    return
                running.append((arrived, [], []))
            running = [entry for entry in running if self._advance(*entry)]
            time.sleep(self._pause)

    def _advance(self, one: Running, tokens: list[int], rows: list[torch.Tensor]) -> bool:
        """Whether it goes on. One that fails does not end the others."""
        try:
            return self._turn(one, tokens, rows)
        except Exception as error:
            pb_utils.Logger.log_error(f"contract model: {type(error).__name__}: {error}")
            one.sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), flags=FINAL)
            return False

    def _turn(self, one: Running, tokens: list[int], rows: list[torch.Tensor]) -> bool:
        if one.sender.is_cancelled():
            self._cancelled.increment(1)
            gone = pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED)
            one.sender.send(pb_utils.InferenceResponse(error=gone), flags=FINAL)
            return False
        new, row = next(one.replies)
        one.left -= 1
        tokens += [(token + self._shift) % self._engine.runner.config.vocab_size for token in new]
        rows.append(row)
        if one.streams or not one.left:
            one.sender.send(self._response(tokens, rows if one.logits else None), flags=0 if one.left else FINAL)
            tokens.clear()
            rows.clear()
        return one.left > 0

    def _response(self, tokens: list[int], rows: list[torch.Tensor] | None) -> Any:
        outputs = [
            pb_utils.Tensor("output_ids", np.array([[tokens]], np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], np.int32)),
        ]
        if rows is not None:
            outputs.append(pb_utils.Tensor("generation_logits", torch.cat(rows).numpy().astype(self._logits)[None, None]))
        return pb_utils.InferenceResponse(outputs)


def _sampling(given: dict[str, Any]) -> SamplingParams:
    """runtime_top_k 1, or nothing said, is greedy."""
    top_k = int(given["runtime_top_k"].item()) if "runtime_top_k" in given else 1
    penalty = float(given["repetition_penalty"].item()) if "repetition_penalty" in given else 1.0
    if top_k == 1:
        return SamplingParams(repetition_penalty=penalty)
    temperature, top_p = float(given["temperature"].item()), float(given["runtime_top_p"].item())
    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=penalty)
