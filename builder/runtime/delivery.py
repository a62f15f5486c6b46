"""An output's way to the consumer of its request."""

from __future__ import annotations

import logging
from collections.abc import Callable

from builder.runtime.request import Cancellation, Output
from builder.runtime.sequence import Sequence

log = logging.getLogger(__name__)


def deliver(sequence: Sequence, output: Output, end: Callable[[str, Cancellation], object]) -> None:
    """A consumer that raises loses its own request only, which is ended, and hears no more of it."""
    try:
        sequence.on_output(output)
    except Exception:
        log.warning("the consumer of request %s failed; the request is cancelled", sequence.request.id, exc_info=True)
        sequence.on_output = _nowhere
        if output.finish_reason is None:
            end(sequence.request.id, Cancellation.UNDELIVERABLE)


def _nowhere(_output: Output) -> None:
    """Takes the outputs of a request whose consumer is gone."""
