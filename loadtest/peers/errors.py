"""What can be wrong with a comparison: its input, or one of its peers."""

from __future__ import annotations

from builder.errors import TandemError


class PeersError(TandemError):
    """The prompts file, the out file or an option of the comparison cannot be used."""
