"""Stop strings in streamed text, across token and chunk boundaries."""

from __future__ import annotations

from collections.abc import Sequence

from builder.errors import RequestError


class StopMatcher:
    """Passes text on until a stop string is complete.

    The first stop string to be completed ends the text; of several completed by the same character, the longest. Text that may
    be the beginning of a stop string is held back until that is decided. The result does not depend on how the text is cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError when a stop string is empty."""
        if any(not stop for stop in stops):
            raise RequestError("a stop string is empty", where="stop", mend="Leave it out")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        return self.matched is not None

    def push(self, text: str, final: bool = False) -> str:
        """The text that is safe to show after `text` has arrived; nothing once stopped. `final` gives out what was held back."""
        if self.stopped:
            return ""
        seen = self._held + text
        found = [(seen.index(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in seen]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return seen[: end - len(self.matched)]
        held = 0 if final else self._undecided(seen)
        self._held = seen[len(seen) - held :]
        return seen[: len(seen) - held]

    def _undecided(self, seen: str) -> int:
        """Length of the longest end of `seen` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1)
        ends = range(min(len(seen), longest - 1), 0, -1)
        return next((size for size in ends if any(stop.startswith(seen[-size:]) for stop in self._stops)), 0)
