"""`<p>_detokenize`: token ids in, text out. Keeps no state: every chunk brings the tokens before it."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import triton_python_backend_utils as pb_utils

from builder.repository.layout import ANSWER_OUTPUTS
from builder.repository.models.folder import read_tokenizer, version_folder
from builder.repository.models.parameters import Options
from builder.repository.models.tensors import error_response, int_tensor, log_exception, read_ints, read_text, read_texts, text_tensor
from builder.text import Tokenizer, delta

Item = TypeVar("Item")


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        self._tokenizer = read_tokenizer(version_folder(args))
        self._decode = str(args["model_name"]).removesuffix("_detokenize") + "_decode"

    def execute(self, requests: list[Any]) -> list[Any]:
        for request in requests:
            if request.is_cancelled():
                self._report_deserted(request)
        return [self._answer(request) for request in requests]

    def _report_deserted(self, request: Any) -> None:
        """Triton tells the steps it starts that the ensemble's client has left, but not decode, which started before."""
        try:
            options = Options(deserted=int(read_ints(request, "answer_key")[0]))
            inputs = [int_tensor("input_ids", [0]), text_tensor("request", options.to_json(""))]
            call = pb_utils.InferenceRequest(model_name=self._decode, requested_output_names=["finish_reason"], inputs=inputs)
            for response in call.exec(decoupled=True):
                if response.has_error():
                    raise RuntimeError(response.error().message())
        except Exception as error:  # the answer then costs as much as its deadline allows
            log_exception(error)

    def _answer(self, request: Any) -> Any:
        try:
            texts = {name: read_texts(request, name) for name in ANSWER_OUTPUTS}
            token_ids = read_ints(request, "token_ids").tolist()
            context_ids = read_ints(request, "context_ids").tolist()
            rows = read_ints(request, "chunks").tolist()
            finals = [bool(reason) for reason in texts["finish_reason"]]
            texts["text_output"] = join_chunks(self._tokenizer, context_ids, token_ids, rows, finals)
            scores = split_by_sample(json.loads(read_text(request, "token_logprobs") or "[]"), rows, len(finals))
            tokens = split_by_sample(token_ids, rows, len(finals))
            texts["logprobs"] = [describe_logprobs(self._tokenizer, *sample) for sample in zip(tokens, scores, strict=True)]
            index = int_tensor("index", read_ints(request, "index"))
        except Exception as error:  # one bad chunk must not end the model
            return error_response(error)
        return pb_utils.InferenceResponse([index, *(text_tensor(name, *values) for name, values in texts.items())])


def join_chunks(tokenizer: Tokenizer, context_ids: list[int], token_ids: list[int], rows: list[list[int]], finals: list[bool]) -> list[str]:
    """The text of each sample. Row: (context tokens, new tokens, characters to keep or -1, sample); `finals` says whose last chunk came."""
    texts = [""] * len(finals)
    last_rows = {row[3]: place for place, row in enumerate(rows)}
    context_at = token_at = 0
    for place, (context, new, limit, sample) in enumerate(rows):
        final = finals[sample] and last_rows[sample] == place
        text = delta(tokenizer, context_ids[context_at : context_at + context], token_ids[token_at : token_at + new], final)
        texts[sample] += text if limit < 0 else text[:limit]
        context_at += context
        token_at += new
    return texts


def split_by_sample(items: list[Item], rows: list[list[int]], samples: int) -> list[list[Item]]:
    """One item a token, in the order of the chunks, as a list for each sample; empty lists when there are no items."""
    split: list[list[Item]] = [[] for _ in range(samples)]
    at = 0
    for _, new, _, sample in rows:
        split[sample] += items[at : at + new]
        at += new
    return split


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
