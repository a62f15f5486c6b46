"""`<p>_tokenize`: text or chat and request parameters in, token ids and checked options out."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace
from typing import Any

import triton_python_backend_utils as pb_utils

from builder.repository.models.folder import read_spec, read_tokenizer, version_folder
from builder.repository.models.parameters import read_options
from builder.repository.models.prompt import prompt_ids
from builder.repository.models.tensors import error_response, int_tensor, read_bytes, text_tensor
from builder.telemetry.spans import endpoint_of


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        folder = version_folder(args)
        self._spec = read_spec(folder)
        self._tokenizer = read_tokenizer(folder)
        self._traces = endpoint_of(self._spec.tracing) is not None

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        began = time.time_ns()
        try:
            options = read_options(json.loads(request.parameters() or "{}"), self._spec)
            request_id = request.request_id() or options.id or uuid.uuid4().hex
            messages = read_bytes(request, "messages")
            if messages is None and options.messages is not None:
                messages = options.messages.encode("utf-8")
            if options.cancel is not None:
                ids = [0]  # no prompt to read; a tensor of an ensemble cannot be left out
            else:
                ids = prompt_ids(self._tokenizer, read_bytes(request, "text_input"), messages, self._spec)
        except Exception as error:  # whatever one request holds, the model lives on
            return error_response(error)
        if self._traces:
            options = replace(options, tokenized=(began, time.time_ns()))
        return pb_utils.InferenceResponse([int_tensor("input_ids", ids), text_tensor("request", options.to_json(request_id))])
