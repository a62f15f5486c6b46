"""The engine of trtllm-llmapi: tensorrt_llm.LLM behind the interface of the decode loop.

TensorRT-LLM batches, drafts and verifies by itself. What stays ours is where an answer ends, what is counted, and who is
speculated on: a request with speculation off goes to a second, plain instance, since no release switches it by request.
Never run on a GPU here: tested with a double whose signatures are those of the version table.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from builder.decoding.control import State
from builder.errors import EngineError, OverloadError, RequestError
from builder.runtime.answer import Answer
from builder.runtime.loop_thread import LoopThread
from builder.runtime.observer import Observer, SilentObserver, tell_tokens
from builder.runtime.request import Cancellation, DecodeStats, FinishReason, Output, Request
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import ControlReport
from builder.runtime.steps import StepObserver
from builder.runtime.switches import Switches
from builder.runtime.validation import check_request
from builder.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
RETRY_AFTER = 1.0  # seconds; how fast the library empties its queue is not known here


class Generation(Protocol):
    """A running request of LLM: yields itself with `outputs` grown, and can be aborted."""

    outputs: list[Any]

    def __aiter__(self) -> AsyncIterator[Generation]: ...
    def abort(self) -> None: ...


class Llm(Protocol):
    """What is used of tensorrt_llm.LLM."""

    def generate_async(self, inputs: list[int], sampling_params: Any = None, *, streaming: bool = False) -> Generation: ...
    def shutdown(self) -> None: ...


class LlmApiEngine:
    """`submit`, `cancel` and `set_switches` may be called from any thread; outputs come from the engine's own.

    `plain` is the instance without speculation, None when there is none: then nothing can be switched off.
    `make_sampling` is tensorrt_llm.SamplingParams.
    """

    def __init__(
        self,
        speculative: Llm,
        plain: Llm | None,
        make_sampling: Callable[..., Any],
        settings: EngineSettings,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        tokenizer: Tokenizer | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._speculative, self._plain = speculative, plain
        self._make_sampling = make_sampling
        self._settings = settings
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._tokenizer = tokenizer
        self._observer = observer or SilentObserver()
        self._switches = Switches()
        self._lock = threading.Lock()  # guards what follows
        self._running: dict[str, Future[None]] = {}
        self._reasons: dict[str, Cancellation] = {}  # of cancelled requests
        self._loop: LoopThread | None = None

    @property
    def broken(self) -> bool:
        """TensorRT-LLM that lost its GPU fails requests one by one; nothing here can tell the two apart."""
        return False

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Start a request. RequestError for a bad value, OverloadError for a full queue, EngineError unless the engine is started."""
        check_request(request, self._settings, self._vocab_size, has_tokenizer=self._tokenizer is not None)
        if request.sampling.logprobs is not None:
            raise RequestError("logprobs are not available with trtllm-llmapi", where="logprobs", mend="Leave logprobs out")
        if request.sampling.n > 1:
            raise RequestError("several answers are not available with trtllm-llmapi", where="n", mend="Leave n out")
        with self._lock:
            if self._loop is None:
                raise EngineError("the engine is not started")
            if request.id in self._running:
                raise RequestError(f"a request with id {request.id!r} is being served", where="id", mend="Give each request its own id")
            if len(self._running) >= self._settings.max_batch_size + self._settings.max_waiting:
                what = f"{len(self._running)} requests run or wait already"
                raise OverloadError(what, where="serving.max_waiting", limit="queue", retry_after=RETRY_AFTER)
            self._running[request.id] = self._loop.run(self._serve(request, on_output))

    def cancel(self, request_id: str, reason: Cancellation) -> bool:
        """End a request; its last output says so. False when there is no such request."""
        with self._lock:
            running = self._running.get(request_id)
            if running is not None and self._loop is not None:
                self._reasons.setdefault(request_id, reason)
                self._loop.call_a_turn_later(running.cancel)
            return running is not None

    def set_switches(self, switches: Switches) -> None:
        """What the operator allows of requests that start from now on; running ones stay on their instance."""
        self._switches = switches

    def control_report(self) -> ControlReport:
        """Drafts have one length here: what the operator allows decides, and nothing is measured."""
        if self._settings.proposer == "none" or (self._plain is not None and not self._switches.speculation):
            return ControlReport(State.PLAIN, 0, ())
        return ControlReport(State.SPECULATING, self._settings.max_draft_tokens, ())

    def observe_steps(self, observer: StepObserver) -> None:
        """TensorRT-LLM does not show its steps: a trace has a request's beginning and end, and nothing between."""

    def start(self) -> None:
        """Run the requests in a thread of their own until `stop`."""
        with self._lock:
            if self._loop is not None:
                raise EngineError("the engine is running already")
            self._loop = LoopThread("tandem-llmapi")

    def stop(self) -> None:
        """Cancel what is running, then release the GPUs."""
        with self._lock:
            running = list(self._running)
        for request_id in running:
            self.cancel(request_id, Cancellation.SHUTDOWN)
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(_drained())
        for llm in (self._speculative, self._plain):
            if llm is not None:
                llm.shutdown()

    async def _serve(self, request: Request, on_output: Callable[[Output], None]) -> None:
        answer = Answer(request, self._eos, self._settings.max_seq_len, self._tokenizer)
        token_ids = list(request.prompt_ids)
        left = None if request.timeout is None else request.arrival + request.timeout - time.monotonic()
        try:
            async with asyncio.timeout(left):
                await self._generate(request, answer, token_ids, on_output)
        except TimeoutError:
            self._finish(request, answer.cancel(Cancellation.DEADLINE, token_ids, time.monotonic()), on_output)
        except asyncio.CancelledError:
            reason = self._reasons.get(request.id, Cancellation.SHUTDOWN)
            self._finish(request, answer.cancel(reason, token_ids, time.monotonic()), on_output)
        except Exception as error:  # one request fails, the others go on
            log.exception("request %s failed", request.id)
            self._finish(request, answer.abandon(f"{type(error).__name__}: {error}"), on_output)

    async def _generate(self, request: Request, answer: Answer, token_ids: list[int], on_output: Callable[[Output], None]) -> None:
        llm, speculates = self._instance(request)
        answer.tally.state = State.SPECULATING if speculates else State.PLAIN
        generation = llm.generate_async(token_ids[:], self._sampling(request), streaming=True)
        seen, ended = 0, False
        try:
            async for grown in generation:
                result = grown.outputs[0]
                new, seen, ended = result.token_ids[seen:], len(result.token_ids), result.finish_reason is not None
                answer.take(token_ids, new)
                if answer.finish_reason is None and ended:
                    answer.finish_reason = _reason(result.finish_reason)  # it ended at a token that it does not show
                before, now = answer.last_token_at, time.monotonic()
                output = answer.output(token_ids, now)
                if output is None:
                    continue
                tell_tokens(self._observer, request, output, before, now)
                if output.finish_reason is not None:
                    self._finish(request, replace(output, stats=self._stats(output.stats, result)), on_output)
                    return
                on_output(output)
            raise EngineError("TensorRT-LLM ended the answer without a reason")
        finally:
            if not ended:
                generation.abort()

    def _instance(self, request: Request) -> tuple[Llm, bool]:
        """Who serves it, and whether drafts are made there."""
        allowed = request.speculation and self._switches.speculation_for(request.tenant)
        speculates = self._settings.proposer != "none"
        if allowed or self._plain is None:
            return self._speculative, speculates
        return self._plain, False

    def _sampling(self, request: Request) -> Any:
        """Our parameters in TensorRT-LLM's names; top_k 0 and temperature 0 mean there what they mean here."""
        sampling = request.sampling
        return self._make_sampling(
            max_tokens=min(sampling.max_tokens, self._settings.max_seq_len - len(request.prompt_ids)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=1 if sampling.greedy else sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
            stop_token_ids=None if sampling.ignore_eos else sorted(self._eos),
            ignore_eos=sampling.ignore_eos,
            detokenize=False,
            return_perf_metrics=True,
        )

    def _stats(self, stats: DecodeStats | None, result: Any) -> DecodeStats | None:
        """With the request's own figures of drafts, where the release counts them. Rounds follow from drafts of full length."""
        metrics = getattr(result, "request_perf_metrics", None)
        counted = getattr(metrics, "speculative_decoding", None)
        drafted = int(getattr(counted, "total_draft_tokens", 0) or 0)
        if stats is None or not drafted:
            return stats
        rounds = -(-drafted // self._settings.max_draft_tokens)
        accepted = int(getattr(counted, "total_accepted_draft_tokens", 0))
        return replace(
            stats, optimisation="speculative", num_spec_steps=rounds, num_draft_tokens=drafted, num_accepted_draft_tokens=accepted
        )

    def _finish(self, request: Request, output: Output, on_output: Callable[[Output], None]) -> None:
        with self._lock:
            self._running.pop(request.id, None)
            self._reasons.pop(request.id, None)
        self._observer.finished(request, output, time.monotonic() - request.arrival)
        on_output(output)


def _reason(finish_reason: str) -> FinishReason:
    return FinishReason.LENGTH if finish_reason == "length" else FinishReason.STOP


async def _drained() -> None:
    """Every request has given its last output."""
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()), return_exceptions=True)
