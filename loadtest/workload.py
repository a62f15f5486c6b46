"""A workload: who asks what, how often and over which protocol. One YAML file in workloads/ each."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from builder.errors import SpecError
from builder.spec.document import read_document
from builder.spec.durations import Duration
from builder.spec.section import Section, conflict
from builder.spec.violations import spec_error

FOLDER = Path(__file__).parent / "workloads"
Weight = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PromptClass = Literal["chat", "facts", "code", "rewrite"]
Protocol = Literal["generate_stream", "generate", "grpc"]


class Tokens(Section):
    """`max_tokens` of a request, drawn uniformly."""

    min: int = Field(default=32, ge=1, description="Shortest limit of an answer, tokens.")
    max: int = Field(default=128, ge=1, description="Longest limit of an answer, tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise conflict("min", f"min {self.min} is above max {self.max}", "Swap them")
        return self


class Stage(Section):
    """A part of every block under its own load."""

    share: Weight = Field(description="Its length, relative to the other stages.")
    load: float = Field(ge=0, description="Users (closed) or rate (open), relative to what the command line asks for.")


class Faults(Section):
    """What clients do wrong, as shares of all requests."""

    cancel: Share = Field(default=0.0, description="Stopped by id after a few chunks.")
    disconnect: Share = Field(default=0.0, description="The client goes away after a few chunks.")
    malformed: Share = Field(default=0.0, description="Broken requests, which the server must refuse.")

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if self.cancel + self.disconnect + self.malformed > 1:
            raise conflict("cancel", "the shares add up to more than 1", "Lower one of them")
        return self


class Workload(Section):
    """Every request draws its class, protocol, tenant and length by these weights."""

    description: str = Field(description="One sentence: which users this stands for.")
    prompts: dict[PromptClass, Weight] = Field(min_length=1, description="Weight of each prompt class: chat, facts, code, rewrite.")
    protocols: dict[Protocol, Weight] = Field(
        default={"generate_stream": 1}, min_length=1, description="Weight of each protocol: generate_stream, generate, grpc."
    )
    tenants: dict[str, Weight] = Field(default={"other": 1}, min_length=1, description="Weight of each tenant.")
    turns: int = Field(default=1, ge=1, le=50, description="Questions of one conversation; each carries all before it.")
    max_tokens: Tokens = Field(default_factory=Tokens, description="Limit of an answer's length.")
    temperature: float = Field(default=0.0, ge=0, description="Of every request; 0 is greedy.")
    arrivals: Literal["closed", "poisson", "constant"] = Field(
        default="closed",
        description="closed: each user waits for its answer before it asks again. poisson, constant: requests come at `rate` whatever "
        "the server does, and their latency counts from when they should have started.",
    )
    rate: float | None = Field(default=None, gt=0, description="Requests a second of poisson and constant arrivals.")
    think_time: Duration = Field(default="0ms", validate_default=True, description="A closed user's pause between answer and question.")
    stages: tuple[Stage, ...] = Field(
        default=(Stage(share=1, load=1),), strict=False, min_length=1, description="How the load changes within a block."
    )
    block: Duration = Field(default="15s", validate_default=True, gt=0, description="Length of a block of --ab.")
    faults: Faults = Field(default_factory=Faults, description="What clients do wrong.")

    @model_validator(mode="after")
    def _arrivals_have_what_they_need(self) -> Self:
        if self.open and self.rate is None:
            raise conflict("rate", f"{self.arrivals} arrivals need a rate", "Set rate, in requests a second")
        if not self.open and self.rate is not None:
            raise conflict("rate", "a closed workload has no rate", "Remove it, or set arrivals to poisson or constant")
        if self.open and self.turns > 1:
            raise conflict("turns", "conversations need closed arrivals: a turn waits for the answer before it", "Set turns to 1")
        if all(stage.load == 0 for stage in self.stages):
            raise conflict("stages", "no stage has any load", "Give one a load above 0")
        return self

    @property
    def open(self) -> bool:
        return self.arrivals != "closed"


def shipped() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_workload(name: str) -> Workload:
    """A shipped workload by name, or any by its path. SpecError with file:line, or with the nearest name."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
    elif name in shipped():
        path = FOLDER / f"{name}.yaml"
    else:
        near = difflib.get_close_matches(name, shipped(), n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise SpecError(
            f"there is no workload {name!r}", where="--workload", mend=f"{hint}Known: {', '.join(shipped())}, or the path of a YAML file"
        )
    document = read_document(path)
    try:
        return Workload.model_validate(document.data)
    except ValidationError as error:
        raise spec_error(error, document, Workload) from error
