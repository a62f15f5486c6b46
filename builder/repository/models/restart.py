"""What the decode model does when its engine is broken: out of Triton's readiness, and a fresh process in its place."""

from __future__ import annotations

import threading

import triton_python_backend_utils as pb_utils

from builder.repository.models.loader import DecodeEngine
from builder.repository.models.tensors import log_exception

RETRY_SECONDS = 10.0  # between two tries to load


class Restart:
    """Unloading the ensemble takes it out of /v2/models/<p>/ready while its steps stay; loading it again makes Triton start new
    processes for all of them, with fresh caches, before it ends this one. Tried with tritonserver 2.51.
    """

    def __init__(self, pipeline: str, engine: DecodeEngine) -> None:
        self._pipeline = pipeline
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
                pb_utils.load_model(self._pipeline)
                return
            except Exception as error:  # without a model nobody is served: try for as long as this process lives
                log_exception(error)
                pause.wait(RETRY_SECONDS)
