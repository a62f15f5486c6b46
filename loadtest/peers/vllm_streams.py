"""vLLM's continuous batching on a CPU, in an environment of its own: it pins a torch of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.peers.models import hf_folder

_CACHE_GB = 1
# read when the package is imported: the size of the KV cache, cores to run on, and no message to its makers
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GB), "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import vllm  # noqa: E402 - after the environment is set


class VllmStreams:
    """Computed in BF16, compiled as vLLM does it by itself, without its prefix cache: prompts are asked again and again."""

    version = str(vllm.__version__)

    def __init__(self, model: Path, ids: Sequence[list[int]], tokens: int, streams: int, threads: int) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        self._ids = ids
        longest = max(map(len, ids)) + tokens
        self._llm = vllm.LLM(
            str(hf_folder(model)), dtype="bfloat16", max_num_seqs=streams, max_model_len=longest, enable_prefix_caching=False
        )

    def seconds(self, count: int, length: int) -> tuple[float, int]:
        """Ask `count` prompts at once, greedily, `length` tokens each; the time to the last token, and tokens made."""
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": self._ids[place % len(self._ids)]} for place in range(count)]
        began = time.perf_counter()
        answers = self._llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - began, sum(len(answer.outputs[0].token_ids) for answer in answers)
