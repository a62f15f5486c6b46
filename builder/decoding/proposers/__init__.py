"""Proposers make draft tokens. Importing the package imports every file in it, and each registers itself."""

from __future__ import annotations

import importlib
import pkgutil

from builder.decoding.proposers.interface import Context, Draft, DraftModel, Proposer
from builder.decoding.proposers.registry import ENTRIES, Entry, entry, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["ENTRIES", "Context", "Draft", "DraftModel", "Entry", "Proposer", "entry", "register"]
