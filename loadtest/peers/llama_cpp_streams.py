"""llama.cpp with many sequences in one batch, through its C interface: llama-cpp-python's own class runs one sequence only."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from loadtest.peers.errors import PeersError
from loadtest.peers.models import gguf_pair

_BATCH = 512  # tokens of one call, llama.cpp's own default for prompts


class LlamaCppStreams:
    """BF16 weights. Raises PeersError when the model cannot be loaded."""

    version = str(llama_cpp.__version__)

    def __init__(self, model: Path, ids: Sequence[list[int]], tokens: int, streams: int, threads: int) -> None:
        self._ids = ids
        llama_cpp.llama_backend_init()
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self._quiet = quiet  # the library keeps its address
        path = gguf_pair(model).target
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = streams * (max(map(len, ids)) + tokens)
        options.n_batch, options.n_seq_max = _BATCH, streams
        options.n_threads = options.n_threads_batch = threads
        options.kv_unified = True  # one pool, as every server with paged keys has
        self._context = llama_cpp.llama_init_from_model(self._model, options) if self._model else None
        if not self._context:
            raise PeersError("llama.cpp cannot load the model", where=str(path))
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def seconds(self, count: int, length: int) -> tuple[float, int]:
        """Ask `count` prompts at once, greedily, `length` tokens each; the time to the last token, and tokens made."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        prompts = [self._ids[place % len(self._ids)] for place in range(count)]
        began = time.perf_counter()
        latest = self._read(prompts)
        for step in range(length - 1):
            latest = self._run([(token, len(prompts[stream]) + step, stream, True) for stream, token in enumerate(latest)])
        return time.perf_counter() - began, count * length

    def _read(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """All prompts, full batches of them; the token after each."""
        rows = [
            (token, place, stream, place == len(prompt) - 1) for stream, prompt in enumerate(prompts) for place, token in enumerate(prompt)
        ]
        return [token for start in range(0, len(rows), _BATCH) for token in self._run(rows[start : start + _BATCH])]

    def _run(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """One call over rows of (token, position, stream, whether its successor is wanted); the wanted successors."""
        batch: Any = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, stream, wanted) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, wanted
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, stream
        if status := llama_cpp.llama_decode(self._context, batch):
            raise PeersError(f"llama_decode ended with {status}", where="llama.cpp")
        return [self._best(row) for row, (*_, wanted) in enumerate(rows) if wanted]

    def _best(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())
