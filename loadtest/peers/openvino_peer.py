"""OpenVINO GenAI on the CPU plugin: plain, with a draft model, and with prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from loadtest.peers.decoder import OnTokens, Setup
from loadtest.peers.models import openvino_pair

_NGRAM_SIZE = 3


class Arrivals(openvino_genai.StreamerBase):  # type: ignore[misc] # published without types
    """Tells how many tokens came; the pipeline hands over one token or, when it speculates, a round's tokens."""

    def __init__(self, on_tokens: OnTokens) -> None:
        super().__init__()
        self._on_tokens = on_tokens
        self.count = 0

    def write(self, token: int | Sequence[int]) -> Any:
        self.count += 1
        self._on_tokens(1 if isinstance(token, int) else len(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Every token was reported when it came."""


class OpenVinoDecoder:
    """Weights come as 16-bit floats and are computed in BF16 (the plugin's precision hint). The draft is the model in INT4."""

    def __init__(self, setup: Setup) -> None:
        models = openvino_pair(setup.model)
        self.version = str(openvino_genai.__version__)
        self.precision = "bf16+int4" if setup.mode == "speculative" else "bf16"
        self._setup = setup
        device = {"INFERENCE_NUM_THREADS": setup.threads}
        options: dict[str, Any] = device | {"INFERENCE_PRECISION_HINT": "bf16"}
        if setup.mode == "speculative":
            options["draft_model"] = openvino_genai.draft_model(str(models.draft), "CPU", **device)
        elif setup.mode == "ngram":
            options["prompt_lookup"] = True
        self._pipeline = openvino_genai.LLMPipeline(str(models.target), "CPU", **options)

    def decode(self, ids: Sequence[int], max_tokens: int, on_tokens: OnTokens) -> int | None:
        arrivals = Arrivals(on_tokens)
        prompt = openvino.Tensor(np.asarray([ids], dtype=np.int64))
        self._pipeline.generate(prompt, self._generation(max_tokens), arrivals)
        return None if self._setup.mode == "plain" else arrivals.count - 1

    def _generation(self, max_tokens: int) -> openvino_genai.GenerationConfig:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.stop_token_ids = set(self._setup.end_ids)
        if self._setup.mode != "plain":
            config.num_assistant_tokens = self._setup.draft_tokens
        if self._setup.mode == "ngram":
            config.max_ngram_size = _NGRAM_SIZE
        return config
