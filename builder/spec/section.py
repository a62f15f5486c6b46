"""The base of every section: strict, frozen, unknown keys refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A mapping of pipeline.yaml. Strict: "4" is no integer, and a misspelt key is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def conflict(key: str, what: str, mend: str) -> PydanticCustomError:
    """An error of a rule over several keys, pinned to `key`: dotted, relative to the section whose validator raises it."""
    # pydantic formats the template with {}: the values travel in the context and the template names them
    return PydanticCustomError("conflict", "{what}. {mend}", {"key": key, "what": what, "mend": mend})
