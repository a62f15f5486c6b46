"""`<p>_detokenize`: token ids in, text out. Keeps no state: every chunk brings the tokens before it."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.layout import ANSWER_OUTPUTS
from builder.repository.models.folder import read_tokenizer, version_folder
from builder.repository.models.tensors import error_response, read_ints, read_text, text_tensor
from builder.text import Tokenizer, delta


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        self._tokenizer = read_tokenizer(version_folder(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            passed_on = {name: read_text(request, name) for name in ANSWER_OUTPUTS}
            token_ids = read_ints(request, "token_ids").tolist()
            context_ids = read_ints(request, "context_ids").tolist()
            rows = read_ints(request, "chunks").tolist()
            text = join_chunks(self._tokenizer, context_ids, token_ids, rows, final=bool(passed_on["finish_reason"]))
            logprobs = describe_logprobs(self._tokenizer, token_ids, read_text(request, "token_logprobs"))
        except Exception as error:  # one bad chunk must not end the model
            return error_response(error)
        texts = {"text_output": text, "logprobs": logprobs, **passed_on}
        return pb_utils.InferenceResponse([text_tensor(name, value) for name, value in texts.items()])


def join_chunks(tokenizer: Tokenizer, context_ids: list[int], token_ids: list[int], rows: list[list[int]], final: bool) -> str:
    """The text of consecutive chunks. Row: (context tokens, new tokens, characters to keep or -1)."""
    parts = []
    context_at = token_at = 0
    for index, (context, new, limit) in enumerate(rows):
        last = final and index == len(rows) - 1
        text = delta(tokenizer, context_ids[context_at : context_at + context], token_ids[token_at : token_at + new], last)
        parts.append(text if limit < 0 else text[:limit])
        context_at += context
        token_at += new
    return "".join(parts)


def describe_logprobs(tokenizer: Tokenizer, token_ids: list[int], alternatives: str) -> str:
    """JSON list, one item a token: token_id, token, logprob, top (alternatives, best first). Empty when not asked for."""
    if not alternatives:
        return ""
    items = []
    for token_id, scores in zip(token_ids, json.loads(alternatives), strict=True):
        ranked = sorted(((int(token), score) for token, score in scores.items()), key=lambda pair: -pair[1])
        top = [{"token_id": token, "token": tokenizer.decode([token]), "logprob": score} for token, score in ranked]
        items.append({"token_id": token_id, "token": tokenizer.decode([token_id]), "logprob": dict(ranked).get(token_id), "top": top})
    return json.dumps(items)
