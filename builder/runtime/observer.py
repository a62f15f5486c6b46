"""What the decode loop reports while it runs. Calls come from the loop's thread and must be cheap."""

from __future__ import annotations

from typing import Protocol

from builder.runtime.request import Output, Request


class Observer(Protocol):
    def round_done(self, drafted: int, accepted: int) -> None:
        """A verify group was decided: `accepted` of `drafted` tokens kept."""

    def tokens_emitted(self, request: Request, count: int, seconds_since_last: float | None) -> None:
        """`count` tokens left for one request; None for the first chunk (then see first_token)."""

    def first_token(self, request: Request, seconds: float) -> None: ...

    def finished(self, request: Request, output: Output, seconds: float) -> None:
        """The last chunk of a request; `seconds` from arrival."""

    def pass_done(self, running: int, waiting: int, blocks_used: int, blocks_cached: int, blocks_total: int) -> None:
        """One target pass ended. Used blocks are held by sequences; cached ones are held by none and may be reused."""


def tell_tokens(observer: Observer, request: Request, output: Output, before: float | None, now: float) -> None:
    """Of the tokens of an output that leaves, if it has any; `before` is when the request's last chunk left, None for the first."""
    if not output.token_ids:
        return
    if before is None:
        observer.first_token(request, now - request.arrival)
    observer.tokens_emitted(request, len(output.token_ids), None if before is None else now - before)


class SilentObserver:
    """Reports nowhere."""

    def round_done(self, drafted: int, accepted: int) -> None:
        pass

    def tokens_emitted(self, request: Request, count: int, seconds_since_last: float | None) -> None:
        pass

    def first_token(self, request: Request, seconds: float) -> None:
        pass

    def finished(self, request: Request, output: Output, seconds: float) -> None:
        pass

    def pass_done(self, running: int, waiting: int, blocks_used: int, blocks_cached: int, blocks_total: int) -> None:
        pass
