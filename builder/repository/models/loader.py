"""From a version folder to a running engine: the one place where the Triton side constructs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from builder.repository.models.folder import read_spec
from builder.runtime.observer import Observer
from builder.runtime.request import Cancellation, Output, Request
from builder.runtime.speculation import ControlReport
from builder.runtime.steps import StepObserver
from builder.runtime.switches import Switches


class DecodeEngine(Protocol):
    """What the decode model uses of `builder.runtime.engine.Engine`."""

    @property
    def broken(self) -> bool: ...
    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None: ...
    def cancel(self, request_id: str, reason: Cancellation) -> bool: ...
    def set_switches(self, switches: Switches) -> None: ...
    def control_report(self) -> ControlReport: ...
    def observe_steps(self, observer: StepObserver) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


def load(version_folder: Path, observer: Observer) -> DecodeEngine:
    """The engine of `<p>_decode/N/`, not started. EngineError when it cannot run on this machine."""
    spec = read_spec(version_folder)
    if spec.engine.chosen_backend == "trtllm-llmapi":
        from builder.repository.llmapi import open_llmapi

        return open_llmapi(version_folder, spec, observer=observer)
    if spec.engine.chosen_backend == "trtllm-engine":
        from builder.repository.pair import open_pair

        return open_pair(version_folder, spec, observer=observer)
    from builder.repository.engine import open_engine  # torch: importing this module must not cost it

    return open_engine(version_folder, spec, observer=observer, version=version_folder.name)
