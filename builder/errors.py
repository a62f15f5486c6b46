"""Every error a user can meet: one paragraph that says what is wrong, where, and how to mend it."""

from __future__ import annotations

import math


class TandemError(Exception):
    """Base of all errors that are the user's to mend. The command line prints it without a traceback.

    `what` is a sentence without a full stop, `where` a file:line or a field, `mend` a sentence.
    """

    exit_code = 2  # 2: wrong use or bad input; 1: a check or gate said no

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None) -> None:
        self.what = what
        self.where = where
        self.mend = mend
        super().__init__(self.paragraph())

    def paragraph(self) -> str:
        place = f"{self.where}: " if self.where else ""
        mend = f" {self.mend.rstrip('.')}." if self.mend else ""
        return f"{place}{self.what.rstrip('.')}.{mend}"


class SpecError(TandemError):
    """pipeline.yaml cannot be read or breaks the schema."""


class WeightsError(TandemError):
    """Weights are missing, truncated, or of an architecture or quantisation that is not supported."""


class TokenizerError(TandemError):
    """The tokenizer is missing or cannot be used, or a chat template fails."""


class CheckError(TandemError):
    """A check of `plan` or a gate said no: the input is well-formed, but it must not be built or shipped."""

    exit_code = 1


class BuildError(TandemError):
    """Compiling or packing failed: no compiler, no space, no permission."""


class EngineError(TandemError):
    """A compiled engine cannot be loaded or run on this machine."""


class RepositoryError(TandemError):
    """The model repository is missing, locked, or its files do not match their manifest."""


class FlagError(TandemError):
    """An unknown feature flag, value or tenant, or a flags file that cannot be understood."""


class ServeError(TandemError):
    """Triton cannot be started or reached: port in use, binary missing, not ready in time."""


class RequestError(TandemError):
    """A request that cannot be served as it is: bad sampling value, empty or too long prompt, unknown parameter."""


class OverloadError(RequestError):
    """A request that is refused now and may be served later: a full queue, a limit of its tenant, an engine being restarted.

    `limit` names the limit in a closed set of words, `retry_after` is in whole seconds.
    """

    def __init__(self, what: str, *, where: str, limit: str, retry_after: float) -> None:
        self.limit = limit
        self.retry_after = max(1, math.ceil(retry_after))
        super().__init__(what, where=where, mend=f"Try again in {self.retry_after} s")
