"""`<p>_detokenize`: token ids in, text out. Text needs no state here: every chunk brings the tokens before it."""

from __future__ import annotations

import json
import time
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.models.deserted import address_of, tell
from builder.repository.models.folder import read_spec, read_tokenizer, version_folder
from builder.repository.models.parts import Part
from builder.repository.models.tensors import error_response, int_tensor, log_exception, read_texts, text_tensor
from builder.telemetry.detokenize_traces import DetokenizeTraces
from builder.telemetry.spans import open_spans
from builder.text import Tokenizer, delta


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        folder = version_folder(args)
        self._tokenizer = read_tokenizer(folder)
        pipeline = str(args["model_name"]).removesuffix("_detokenize")
        self._decode = address_of(pipeline, str(args["model_version"]))  # several may be loaded: only its own knows the answer
        spans = open_spans(read_spec(folder).tracing, model=pipeline, version=folder.name)
        self._traces = DetokenizeTraces(spans) if spans else None

    def finalize(self) -> None:
        if self._traces is not None:
            self._traces.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        for request in requests:
            if request.is_cancelled():
                self._report_deserted(request)
        return [self._answer(request) for request in requests]

    def _report_deserted(self, request: Any) -> None:
        """Triton tells the steps it starts that the ensemble's client has left, but not decode, which started before."""
        try:
            tell(self._decode, Part.from_json(read_texts(request, "parts")[0]).key)
        except Exception as error:  # the answer then costs as much as its deadline allows
            log_exception(error)

    def _answer(self, request: Any) -> Any:
        began = time.time_ns()
        try:
            parts = [Part.from_json(text) for text in read_texts(request, "parts")]
            texts = {
                "text_output": [text_of(self._tokenizer, part) for part in parts],
                "logprobs": [describe_logprobs(self._tokenizer, part.token_ids, part.logprobs) for part in parts],
                "finish_reason": [part.finish_reason for part in parts],
                "usage": [parts[0].usage],  # the request's, the same in all
                "decode_stats": [part.decode_stats for part in parts],
            }
        except Exception as error:  # one bad chunk must not end the model
            return error_response(error)
        index = int_tensor("index", [part.index for part in parts])
        answer = pb_utils.InferenceResponse([index, *(text_tensor(name, *values) for name, values in texts.items())])
        if self._traces is not None and parts[0].traceparent:
            self._traces.add(parts[0].traceparent, began, time.time_ns(), last=bool(parts[0].usage))
        return answer


def text_of(tokenizer: Tokenizer, part: Part) -> str:
    """The text that a part adds. Only the answer's very last chunk gives up an unfinished character."""
    text = ""
    for place, (context, new, limit) in enumerate(part.chunks, 1):
        added = delta(tokenizer, context, new, bool(part.finish_reason) and place == len(part.chunks))
        text += added if limit < 0 else added[:limit]
    return text


def describe_logprobs(tokenizer: Tokenizer, token_ids: list[int], alternatives: list[dict[str, float]]) -> str:
    """JSON list, one item a token: token_id, token, logprob, top (alternatives, best first). Empty when not asked for."""
    if not alternatives:
        return ""
    items = []
    for token_id, scores in zip(token_ids, alternatives, strict=True):
        ranked = sorted(((int(token), score) for token, score in scores.items()), key=lambda pair: -pair[1])
        top = [{"token_id": token, "token": tokenizer.decode([token]), "logprob": score} for token, score in ranked]
        items.append({"token_id": token_id, "token": tokenizer.decode([token_id]), "logprob": dict(ranked).get(token_id), "top": top})
    return json.dumps(items)
