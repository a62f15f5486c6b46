"""transformers' generate in BF16 with SDPA attention: plain, assisted by a depth-cut of the model, and with prompt lookup."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation.streamers import BaseStreamer

from loadtest.peers.decoder import OnTokens, Setup
from loadtest.peers.models import hf_folder


class Arrivals(BaseStreamer):
    """Tells how many tokens came. The first thing that `generate` puts is the prompt."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self.count = -1

    def put(self, value: torch.Tensor) -> None:
        self.count += 1
        if self.count:
            self._on_tokens(value.numel())

    def end(self) -> None:
        """Every token was reported when it came."""


class TransformersDecoder:
    """BF16 target; the draft of `speculative` is its lower half with the target's own norm and head."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self.version = str(transformers.__version__)
        self._end_ids = list(setup.end_ids)
        self._speculates = setup.mode != "plain"
        self._model = _load(setup.model)
        self._options: dict[str, Any] = {}
        self.precision = "bf16"
        if setup.mode == "speculative":
            layers = self._model.config.num_hidden_layers // 2
            self.precision = f"bf16+bf16 ({layers} layers)"
            self._options["assistant_model"] = _lower_layers(self._model, layers, setup.draft_tokens)
        elif setup.mode == "ngram":
            self._options["prompt_lookup_num_tokens"] = setup.draft_tokens

    @torch.inference_mode()
    def decode(self, ids: Sequence[int], max_tokens: int, on_tokens: OnTokens) -> int | None:
        arrivals = Arrivals(on_tokens)
        prompt = torch.tensor([list(ids)])
        self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=self._end_ids,
            pad_token_id=self._end_ids[0] if self._end_ids else None,
            streamer=arrivals,
            **self._options,
        )
        return arrivals.count - 1 if self._speculates else None


def _load(source: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        hf_folder(source), dtype=torch.bfloat16, attn_implementation="sdpa", local_files_only=True
    )
    return model.eval()


def _lower_layers(model: Any, layers: int, draft_tokens: int) -> Any:
    """The first `layers` layers with the embeddings, norm and head of `model`, proposing always `draft_tokens` tokens."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):  # newer configurations name the attention of each layer
        config.layer_types = config.layer_types[:layers]
    draft = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    draft.load_state_dict(model.state_dict(), strict=False)  # the upper layers have no place in it
    draft.generation_config.num_assistant_tokens = draft_tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return draft.eval()
