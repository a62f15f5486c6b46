"""What the decode model does when its engine is broken: out of Triton's readiness, and a fresh process in its place."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import triton_python_backend_utils as pb_utils

from builder.repository.models.loader import DecodeEngine
from builder.repository.models.tensors import log_exception

RETRY_SECONDS = 10.0  # between two tries to load


class Restart:
    """Unloading the ensemble takes it out of /v2/models/<p>/ready while its steps stay. Loading it again loads those steps anew whose
    files have changed, before it ends the old ones, so `model` (this version's model.py) gets a new time: Triton then starts a new
    process for this version, and for no other. Where that is not allowed the pipeline stays out of readiness, for whoever restarts
    servers to see. Tried with tritonserver 2.51.
    """

    def __init__(self, pipeline: str, engine: DecodeEngine, model: Path) -> None:
        self._pipeline = pipeline
        self._model = model
        self._engine = engine
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Start over if the engine is broken. In a thread of its own: Triton answers only after the new process is ready."""
        if self._engine.broken and self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="tandem-restart")
            self._thread.start()

    def _run(self) -> None:
        pb_utils.Logger.log_error(f"the engine of {self._pipeline} keeps failing; the pipeline is loaded anew")
        pause = threading.Event()
        while True:
            try:
                pb_utils.unload_model(self._pipeline)
                self._engine.stop()
                os.utime(self._model)
                pb_utils.load_model(self._pipeline)
                return
            except Exception as error:  # without a model nobody is served: try for as long as this process lives
                log_exception(error)
                pause.wait(RETRY_SECONDS)
