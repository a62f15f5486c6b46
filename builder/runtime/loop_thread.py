"""An event loop in a thread of its own, for engines whose requests are coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any


class LoopThread:
    """Runs from its making until `close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call it soon; from any thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def call_a_turn_later(self, function: Callable[..., object], *arguments: object) -> None:
        """A turn later than `call`: a coroutine that is cancelled before its first step ends without a last output."""
        self._loop.call_soon_threadsafe(self._loop.call_soon, function, *arguments)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        """From any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last` to its end, then end the loop and its thread."""
        self.run(last).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
