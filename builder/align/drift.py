"""What was tuned or measured with parts that have changed since: the newest version's manifest against what is built now (M11)."""

from __future__ import annotations

from pathlib import Path

from builder.errors import CheckError
from builder.plan.wording import listed
from builder.repository.publish import Release
from builder.repository.versions import Version, versions

PARTS = {"target_weights": "the target's weights", "draft_weights": "the draft's weights", "tokenizer": "the tokenizer"}


def changed_parts(repository: Path, release: Release) -> str | None:
    """What differs from the newest version, in words; None when nothing does, or there is no version."""
    newest = _newest(repository, release)
    if newest is None:
        return None
    before, now = newest.manifest.fingerprints, dict(release.fingerprints)
    if now.get("draft_weights") == now["target_weights"]:
        del now["draft_weights"]  # made of the target's own: one change, told once
    changed = [words for part, words in PARTS.items() if part in before and part in now and before[part] != now[part]]
    return listed(changed) if changed else None


def was_aligned(repository: Path, release: Release) -> bool:
    newest = _newest(repository, release)
    return newest is not None and bool(newest.manifest.results.get("alignment"))


def refuse_old_measurements(repository: Path, release: Release, where: Path) -> None:
    """speculation.measured holds for the weights and the tokenizer it was measured with. CheckError when they are others now and it is
    still the newest version's."""
    newest, measured = _newest(repository, release), release.spec["speculation"]["measured"]
    changed = changed_parts(repository, release)
    if newest is None or measured is None or changed is None or newest.manifest.spec["speculation"].get("measured") != measured:
        return
    raise CheckError(
        f"speculation.measured was measured with version {newest.number}, and {changed} changed since",
        where=f"{where}: speculation.measured",
        mend="Set it to null and build, run `builder bench`, and enter what it measures now",
    )


def _newest(repository: Path, release: Release) -> Version | None:
    found = versions(repository, release.pipeline)
    return found[-1] if found else None
