"""llama.cpp through llama-cpp-python: plain, with its draft-model interface, and with its prompt lookup."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

from loadtest.peers.decoder import OnTokens, Setup
from loadtest.peers.models import gguf_pair

_NGRAM_SIZE = 3
_Ids = npt.NDArray[np.intc]


class GreedyDraft(LlamaDraftModel):  # type: ignore[misc] # published without types
    """A second llama.cpp model that proposes its most likely continuation; it keeps its KV cache up to the common prefix."""

    def __init__(self, model: llama_cpp.Llama, draft_tokens: int) -> None:
        self._model, self._draft_tokens = model, draft_tokens

    def __call__(self, input_ids: _Ids, /, **_: Any) -> _Ids:
        tokens = self._model.generate(input_ids.tolist(), temp=0.0)
        return np.fromiter(itertools.islice(tokens, self._draft_tokens), dtype=np.intc)


class CountedDraft(LlamaDraftModel):  # type: ignore[misc]
    """Counts rounds: llama-cpp-python asks for a draft once before each target pass after the first token."""

    def __init__(self, draft: LlamaDraftModel) -> None:
        self._draft = draft
        self.rounds = 0

    def __call__(self, input_ids: _Ids, /, **options: Any) -> _Ids:
        self.rounds += 1
        proposed: _Ids = self._draft(input_ids, **options)
        return proposed


class LlamaCppDecoder:
    """BF16 target; the draft of `speculative` is the same model in Q4_0."""

    def __init__(self, setup: Setup) -> None:
        models = gguf_pair(setup.model)
        self.version = str(llama_cpp.__version__)
        self.precision = "bf16+q4_0" if setup.mode == "speculative" else "bf16"
        self._end_ids = setup.end_ids
        self._draft: CountedDraft | None = None
        if setup.mode == "speculative":
            with _stored_layout():
                draft = _open(models.draft, setup)
            self._draft = CountedDraft(GreedyDraft(draft, setup.draft_tokens))
        elif setup.mode == "ngram":
            self._draft = CountedDraft(LlamaPromptLookupDecoding(max_ngram_size=_NGRAM_SIZE, num_pred_tokens=setup.draft_tokens))
        self._model = _open(models.target, setup, self._draft)

    def decode(self, ids: Sequence[int], max_tokens: int, on_tokens: OnTokens) -> int | None:
        if self._draft is not None:
            self._draft.rounds = 0
        self._model.reset()  # the prompt is read anew each time: no prefix is left in the cache
        for token in itertools.islice(self._model.generate(list(ids), temp=0.0), max_tokens):
            on_tokens(1)
            if token in self._end_ids:
                break
        return None if self._draft is None else self._draft.rounds


@contextlib.contextmanager
def _stored_layout() -> Iterator[None]:
    """Models opened inside keep their weights as they are in the file: repacked 4-bit weights end llama.cpp (0.3.36) with a
    segmentation fault on a processor with AMX. llama-cpp-python has no option for it."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def unpacked() -> Any:
        options = defaults()
        options.use_extra_bufts = False
        return options

    with mock.patch.object(llama_cpp.llama_cpp, "llama_model_default_params", unpacked):
        yield


def _open(path: Path, setup: Setup, draft: LlamaDraftModel | None = None) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        str(path),
        n_ctx=setup.context,
        n_threads=setup.threads,
        n_threads_batch=setup.threads,
        draft_model=draft,
        verbose=False,
    )
