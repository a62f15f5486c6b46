"""Which requests are speculated on while a rollout lasts: a stable share of request ids, or of tenants."""

from __future__ import annotations

import hashlib

from builder.spec.speculation import Speculation

SPECULATION, CONTROL = "speculation", "control"  # the two arms


def arm(spec: Speculation, request_id: str, tenant: str) -> str:
    """ "" without a rollout. The same id (or tenant) is on the same side on every replica and after every restart."""
    if spec.rollout == 100:
        return ""
    key = tenant if spec.rollout_by == "tenant" else request_id
    place = int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big") % 100
    return SPECULATION if place < spec.rollout else CONTROL
