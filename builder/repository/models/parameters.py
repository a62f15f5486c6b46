"""What a request may ask, read from Triton's request parameters: every value checked, every unknown name refused."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from builder.decoding.params import SamplingParams
from builder.errors import RequestError
from builder.spec.pipeline import PipelineSpec
from builder.spec.tenants import LEAST_URGENT

TENANT_HEADER = "x-tenant"  # forwarded by Triton for gRPC; HTTP `generate` forwards no headers
MOST_LOGPROBS = 20
MOST_STOPS = 16
LONGEST_STOP = 256  # characters
SPECULATION = ("on", "off", "auto")
EARLY_EXIT = ("on", "off")
MOST_SAMPLES = 64


@dataclass(frozen=True)
class Options:
    """A request without its text. `messages` is a chat as JSON; `cancel` names a running request to stop instead of a prompt."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: bool = True
    early_exit: bool = True
    tenant: str = "other"
    priority: int = 0
    timeout_ms: int | None = None
    stream: bool = False
    messages: str | None = None
    cancel: str | None = None
    id: str | None = None  # of a client whose endpoint carries none beside the parameters, as HTTP `generate`
    traceparent: str | None = None  # W3C, of the client's own span
    tokenized: tuple[int, int] | None = None  # when tokenize began and ended, nanoseconds since 1970; where requests are traced

    def to_json(self, request_id: str) -> str:
        """The `request` tensor between tokenize and decode."""
        return json.dumps({**asdict(self), "messages": None, "id": request_id})

    @classmethod
    def from_json(cls, text: str) -> tuple[str, Options]:
        """(request id, options)"""
        data = json.loads(text)
        request_id = data.pop("id")
        sampling = data.pop("sampling")
        tokenized = data.pop("tokenized")
        sampling = SamplingParams(**{**sampling, "stop": tuple(sampling["stop"])})
        return request_id, cls(sampling=sampling, tokenized=tokenized and tuple(tokenized), **data)


def read_options(parameters: Mapping[str, Any], spec: PipelineSpec) -> Options:
    """Options of one request under a pipeline's limits. RequestError names field, value and range."""
    values = dict(parameters)
    header = next((values.pop(name) for name in list(values) if name.lower() == TENANT_HEADER), None)
    for name in values:
        if name not in READERS:
            raise RequestError(f"unknown parameter `{name[:60]}`", where="parameters", mend=_nearest(name))
    read = {name: READERS[name](name, value) for name, value in values.items()}
    longest = spec.longest_answer
    max_tokens = read.setdefault("max_tokens", spec.default_answer)
    if max_tokens > longest:
        raise _out_of_range("max_tokens", max_tokens, f"a whole number from 1 to {longest}")
    tenant = spec.chargeback.label(str(read.pop("tenant", header or "")))
    longest_time = round(spec.serving.request_timeout * 1000)
    timeout = min(read.pop("timeout_ms", longest_time), longest_time)
    others = {
        name: read.pop(name)
        for name in ("stream", "messages", "cancel", "id", "speculation", "early_exit", "priority", "traceparent")
        if name in read
    }
    return Options(sampling=SamplingParams(**read), tenant=tenant, timeout_ms=timeout, **others)


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, READERS, n=1, cutoff=0.5)
    return f"Did you mean `{close[0]}`" if close else f"Known are {', '.join(sorted(READERS))}"


def _out_of_range(name: str, value: object, allowed: str) -> RequestError:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    return RequestError(f"{shown} is not {allowed}", where=name)


def _integer(low: int, high: int, allowed: str) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _out_of_range(name, value, allowed)
        return value

    return read


def _number(test: Callable[[float], bool], allowed: str) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        if isinstance(value, str):  # gRPC clients before double parameters can only send a number as text
            try:
                value = float(value)
            except ValueError:
                raise _out_of_range(name, value, allowed) from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not test(float(value)):
            raise _out_of_range(name, value, allowed)
        return float(value)

    return read


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _out_of_range(name, value, "true or false")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _out_of_range(name, value, "text")
    return value


def _switch(words: tuple[str, ...]) -> Callable[[str, Any], bool]:
    def read(name: str, value: Any) -> bool:
        if value not in words:
            raise _out_of_range(name, value, "one of " + ", ".join(words))
        return bool(value != "off")

    return read


def _stops(name: str, value: Any) -> tuple[str, ...]:
    """A string, or a JSON list of strings as text: Triton's parameters are scalars."""
    text = _text(name, value)
    stops: Any = [text]
    if text.startswith("["):
        try:
            stops = json.loads(text)
        except ValueError:
            stops = [text]  # a stop string that only looks like a list
    allowed = f"text or a JSON list of at most {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"
    if len(stops) > MOST_STOPS or any(not isinstance(stop, str) or not 0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise _out_of_range(name, value, allowed)
    return tuple(stops)


READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "max_tokens": _integer(1, 1 << 31, "a whole number of at least 1"),
    "temperature": _number(lambda x: x >= 0, "a number of at least 0 (0 is greedy)"),
    "top_p": _number(lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "top_k": _integer(0, 1 << 31, "a whole number of at least 0 (0 is no limit)"),
    "min_p": _number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "repetition_penalty": _number(lambda x: x > 0, "a number above 0 (1 is none)"),
    "seed": _integer(-(1 << 63), (1 << 63) - 1, "a whole number of 64 bits"),
    "stop": _stops,
    "ignore_eos": _boolean,
    "logprobs": _integer(0, MOST_LOGPROBS, f"a whole number from 0 to {MOST_LOGPROBS}"),
    "n": _integer(1, MOST_SAMPLES, f"a whole number from 1 to {MOST_SAMPLES}"),
    "speculation": _switch(SPECULATION),
    "early_exit": _switch(EARLY_EXIT),
    "priority": _integer(0, LEAST_URGENT, f"a whole number from 0 (the most urgent) to {LEAST_URGENT}"),
    "timeout_ms": _integer(1, 1 << 31, "a whole number of milliseconds, at least 1"),
    "tenant": _text,
    "stream": _boolean,
    "messages": _text,
    "cancel": _text,
    "id": _text,
    "traceparent": _text,
}
