"""What a request must satisfy before it may wait: everything that could fail later is refused here, by name."""

from __future__ import annotations

import math

from builder.decoding.params import SamplingParams
from builder.errors import EngineError, RequestError
from builder.runtime.request import Request
from builder.runtime.settings import EngineSettings

MOST_LOGPROBS = 20


def check_settings(settings: EngineSettings) -> None:
    """EngineError when limits contradict each other."""
    if settings.max_num_tokens < settings.max_batch_size:
        limits = f"max_num_tokens {settings.max_num_tokens} is below max_batch_size {settings.max_batch_size}"
        raise EngineError(f"{limits}: a pass must have a row for each running sequence", where="engine")
    pool, fewest = settings.num_blocks * settings.block_size, 4 * settings.block_size
    if settings.eviction == "attention_sink" and min(settings.max_seq_len, pool) < fewest:
        what = (
            f"attention_sink needs room for four blocks, {fewest} tokens; max_seq_len is {settings.max_seq_len}, the KV cache holds {pool}"
        )
        raise EngineError(what, where="engine.kv_cache.eviction", mend="Raise engine.kv_cache.memory or engine.max_seq_len")


def check_request(request: Request, settings: EngineSettings, vocab_size: int, *, has_tokenizer: bool) -> None:
    """RequestError naming the field, its value and its range."""
    _check_prompt(request, settings, vocab_size)
    _check_sampling(request.sampling)
    _check_samples(request.sampling, settings)
    if request.sampling.stop and not has_tokenizer:
        raise RequestError("stop strings need a tokenizer, and this engine has none", where="stop", mend="Leave stop out")


def _check_prompt(request: Request, settings: EngineSettings, vocab_size: int) -> None:
    tokens = len(request.prompt_ids)
    if tokens == 0:
        raise RequestError("the prompt is empty", where="prompt", mend="Send at least one token")
    if settings.eviction == "recompute":
        _check_context(tokens, settings)
    for place, token in enumerate(request.prompt_ids):
        if not 0 <= token < vocab_size:
            raise RequestError(f"token {place} is {token}, the vocabulary has 0 to {vocab_size - 1}", where="prompt")


def _check_context(tokens: int, settings: EngineSettings) -> None:
    if tokens > settings.max_seq_len - 1:
        raise RequestError(
            f"the prompt has {tokens} tokens, at most {settings.max_seq_len - 1} fit max_seq_len {settings.max_seq_len}",
            where="prompt",
            mend="Shorten it, or raise engine.max_seq_len",
        )
    pool = settings.num_blocks * settings.block_size
    if tokens > pool - 1:
        raise RequestError(
            f"the prompt has {tokens} tokens and the whole KV cache holds {pool}",
            where="prompt",
            mend="Shorten it, or raise engine.kv_cache.memory",
        )


def _check_sampling(sampling: SamplingParams) -> None:
    _whole("max_tokens", sampling.max_tokens, 1)
    _real("temperature", sampling.temperature, "0 or more, and finite", sampling.temperature >= 0)
    _real("top_p", sampling.top_p, "more than 0, at most 1", 0 < sampling.top_p <= 1)
    _whole("top_k", sampling.top_k, 0)
    _real("min_p", sampling.min_p, "from 0 to 1", 0 <= sampling.min_p <= 1)
    _real("repetition_penalty", sampling.repetition_penalty, "more than 0, and finite", sampling.repetition_penalty > 0)
    if sampling.seed is not None:
        _whole("seed", sampling.seed, -(2**63), 2**63 - 1)
    if sampling.logprobs is not None:
        _whole("logprobs", sampling.logprobs, 0, MOST_LOGPROBS)
    if any(not stop for stop in sampling.stop):
        raise RequestError("a stop string is empty", where="stop", mend="Leave it out")


def _check_samples(sampling: SamplingParams, settings: EngineSettings) -> None:
    _whole("n", sampling.n, 1, settings.max_batch_size)
    if sampling.n > 1 and sampling.greedy:
        raise RequestError("n answers at temperature 0 would all be the same", where="n", mend="Set a temperature, or leave n out")


def _whole(field: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        upper = f"to {most}" if most is not None else "or more"
        raise RequestError(f"{field} is {value}, it must be {least} {upper}", where=field)


def _real(field: str, value: float, wanted: str, holds: bool) -> None:
    if not (holds and math.isfinite(value)):
        raise RequestError(f"{field} is {value}, it must be {wanted}", where=field)
