"""OpenVINO GenAI's continuous batching on the CPU plugin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from loadtest.peers.models import openvino_pair

_CACHE_GB = 1


class OpenVinoStreams:
    """Computed in BF16. Raises PeersError when the export fails."""

    version = str(openvino_genai.__version__)

    def __init__(self, model: Path, ids: Sequence[list[int]], _tokens: int, streams: int, threads: int) -> None:
        self._ids = ids
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_seqs = streams
        options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "bf16"}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(openvino_pair(model).target), scheduler, "CPU", options)
        self._config = openvino_genai.GenerationConfig()
        self._config.do_sample, self._config.ignore_eos = False, True

    def seconds(self, count: int, length: int) -> tuple[float, int]:
        """Ask `count` prompts at once, greedily, `length` tokens each; the time to the last token, and tokens made."""
        self._config.max_new_tokens = length
        prompts = [openvino.Tensor(np.asarray([self._ids[place % len(self._ids)]], dtype=np.int64)) for place in range(count)]
        began = time.perf_counter()
        answers = self._pipeline.generate(prompts, [self._config] * count)
        return time.perf_counter() - began, sum(len(answer.m_generation_ids[0]) for answer in answers)
