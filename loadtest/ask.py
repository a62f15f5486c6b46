"""One request of a load test, drawn from its key alone: whoever knows workload, target and key can ask it again."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loadtest.prompts import texts
from loadtest.workload import Workload

Fault = Literal["cancel", "disconnect", "malformed"]
Message = Mapping[str, str]
MOST_CHUNKS_BEFORE_FAULT = 6

# Bodies a server must refuse, as what they change of a good one. None removes the key.
MALFORMED: tuple[dict[str, Any], ...] = (
    {"max_tokens": 0},
    {"max_tokens": 1 << 40},
    {"temperature": -1},
    {"top_p": 2},
    {"temprature": 0.5},
    {"speculation": "perhaps"},
    {"messages": "no chat", "text_input": None},
    {"messages": None, "text_input": ""},
    {"messages": None, "text_input": None},
    {"messages": None, "text_input": "x" * 200_000},
)


@dataclass(frozen=True)
class Ask:
    """`inputs` holds text_input or messages (JSON); `fault_after` chunks the client cancels or leaves."""

    id: str
    key: str
    kind: str
    protocol: str
    tenant: str
    inputs: Mapping[str, str]
    parameters: Mapping[str, str | int | float | bool]
    fault: Fault | None = None
    fault_after: int = 0
    history: Sequence[Message] = field(default=(), repr=False)

    @property
    def streams(self) -> bool:
        return self.protocol != "generate"


@dataclass(frozen=True)
class Target:
    """Where a load test asks, and how: `raw` sends the text as it is instead of a chat; `speculation` None leaves it to the server."""

    http: str  # host:port
    grpc: str
    model: str
    raw: bool = False
    speculation: str | None = None


def draw(workload: Workload, target: Target, key: str, run: str, salt: str, history: Sequence[Message] = ()) -> Ask:
    """The request with this key. `salt` opens a conversation's text, so that the prefix cache cannot answer for another arm or run;
    `run` makes its id unique on the server."""
    rng = random.Random(key)
    kind = _pick(rng, workload.prompts)
    protocol = _pick(rng, workload.protocols)
    tenant = _pick(rng, workload.tenants)
    tokens = rng.randint(workload.max_tokens.min, workload.max_tokens.max)
    fault, after = _fault(rng, workload), rng.randint(1, MOST_CHUNKS_BEFORE_FAULT)
    text = rng.choice(texts(kind))
    if not history:
        text = f"({salt}.{rng.randrange(10_000):04d}) {text}"
    messages = [*history, {"role": "user", "content": text}]
    inputs = {"text_input": text} if target.raw else {"messages": json.dumps(messages)}
    parameters: dict[str, str | int | float | bool] = {"max_tokens": tokens, "temperature": workload.temperature, "tenant": tenant}
    if workload.temperature:
        parameters["seed"] = rng.getrandbits(32)
    if target.speculation is not None:
        parameters["speculation"] = target.speculation
    if fault in ("cancel", "disconnect") and protocol == "generate":
        protocol = "generate_stream"  # an answer in one piece leaves no moment to stop it at
    ask = Ask(f"{run}/{key}", key, kind, protocol, tenant, inputs, parameters, fault, after, messages)
    return _broken(ask, rng.choice(MALFORMED)) if fault == "malformed" else ask


def _pick(rng: random.Random, weights: Mapping[Any, float]) -> str:
    return str(rng.choices(list(weights), list(weights.values()))[0])


def _fault(rng: random.Random, workload: Workload) -> Fault | None:
    point = rng.random()
    faults = workload.faults
    shares: tuple[tuple[Fault, float], ...] = (
        ("cancel", faults.cancel),
        ("disconnect", faults.disconnect),
        ("malformed", faults.malformed),
    )
    for fault, share in shares:
        if point < share:
            return fault
        point -= share
    return None


def _broken(ask: Ask, change: Mapping[str, Any]) -> Ask:
    named = [name for name in ("messages", "text_input") if name in change]
    inputs = {name: change[name] for name in named if change[name] is not None} if named else ask.inputs
    parameters = {**ask.parameters, **{name: value for name, value in change.items() if name not in named}}
    return replace(ask, inputs=inputs, parameters=parameters)
