"""Drill of draft drift: a bad draft under live load, the fall-back, plain speed, and the return when the draft is good again."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.decoding.control import Reason, State
from builder.drills.load import PROMPTS, Asked, Load
from builder.drills.repository import copy_version, replace_model
from builder.drills.scrape import Metrics
from builder.drills.swapped_draft import BAD_DRAFT, MODEL, SWAP_FILE, write_bad_draft
from builder.drills.timeline import Check, DrillResult, Say, Timeline
from builder.errors import SpecError
from builder.repository.versions import Version
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.telemetry import catalogue

FALL_BACK_SECONDS = 3.0
FALL_BACK_ROUNDS = 256  # of all sequences together
AS_FAST_AS_PLAIN = "is as fast as plain"  # the one check that hangs on what else the machine does
LEAST_ACCEPTANCE = 0.9  # of the acceptance before, after the return
TURNS = 2  # through the load's prompts, whose acceptances differ much: what is compared is of the same ones
LONGEST_WINDOW = 60.0  # seconds that may take


@dataclass(frozen=True)
class Size:
    window: float  # seconds of one measurement of speed
    pairs: int  # fallen-back and plain windows in turn
    streams: int
    tokens: int
    rearm_after: int  # seconds, the setting of the drill's version
    least_speed: float  # of plain decoding, after the fall-back: short windows on a shared machine say less

    @classmethod
    def of(cls, quick: bool) -> Size:
        return (
            cls(window=1.0, pairs=4, streams=1, tokens=48, rearm_after=3, least_speed=0.9)
            if quick
            else cls(window=6.0, pairs=4, streams=1, tokens=64, rearm_after=10, least_speed=0.95)
        )


def drill_draft_drift(version: Version, *, quick: bool = False, say: Say = lambda _: None) -> DrillResult:
    """On a server of its own, with a copy of `version` that drafts with the draft model alone.

    SpecError for a pipeline without a draft model; RepositoryError or ServeError when it cannot be played.
    """
    from builder.repository.engine import DRAFT

    if not (version.decode_folder / DRAFT).is_dir():
        raise SpecError(
            "this pipeline has no draft model to drift", where="draft", mend="Give it a draft and the proposer draft_model or hybrid"
        )
    size, timeline = Size.of(quick), Timeline(say)
    speculation = {"proposer": "draft_model", "control": {"adaptive": True, "rearm_after": f"{size.rearm_after}s"}}
    with TemporaryDirectory(prefix="tandem-drill-") as name:
        folder = Path(name)
        write_bad_draft(version.decode_folder, folder / BAD_DRAFT)
        copied = copy_version(version, folder / "model_repository", speculation, {BAD_DRAFT: folder / BAD_DRAFT})
        replace_model(copied, MODEL)
        timeline.add(f"starting a server with a copy of version {version.number} and a bad draft at hand")
        with Triton(copied.repository, version.pipeline, free_ports()) as server:
            metrics = Metrics(server.host, server.ports["metrics"], version.pipeline)
            parameters: dict[str, str | int | float | bool] = {"max_tokens": size.tokens, "ignore_eos": True}
            with Load(f"{server.host}:{server.ports['grpc']}", version.pipeline, size.streams, parameters) as load:
                play = _Play(load, metrics, size, timeline, copied.decode_folder.parent / SWAP_FILE)
                checks = play.run()
    timeline.add(f"{len(load.asked)} requests, {len(load.failed)} failed")
    checks.append(Check("no request fails", not load.failed, f"{len(load.failed)} of {len(load.asked)}"))
    return DrillResult(
        "draft-drift",
        version.pipeline,
        play.seconds_to_effect,
        len(load.asked),
        len(load.failed),
        tuple(checks),
        tuple(timeline.entries),
        play.measured,
    )


class _Play:
    """The acts, in order; each returns its checks. Those that a failed one would make meaningless are left out."""

    def __init__(self, load: Load, metrics: Metrics, size: Size, timeline: Timeline, swap_file: Path) -> None:
        self.seconds_to_effect: float | None = None
        self.measured: dict[str, float] = {}
        self._load, self._metrics, self._size, self._timeline, self._swap = load, metrics, size, timeline, swap_file

    def run(self) -> list[Check]:
        checks = self._before()
        if self._holds(checks):
            checks += self._drift()
        if self.seconds_to_effect is not None and not self._load.failed:
            checks += self._plain_speed()
            checks += self._mend()  # however late it fell back, whatever the speed was
        return checks

    def _holds(self, checks: list[Check]) -> bool:
        return all(check.passed for check in checks) and not self._load.failed

    def _before(self) -> list[Check]:
        speculating = self._metrics.wait(lambda: self._metrics.state() is State.SPECULATING and self._drafts() > 20, 30)
        if speculating is None:
            return [Check("speculates before", False, f"state {self._metrics.state()}: drafts do not pay on this machine")]
        acceptance = self._acceptance()
        self.measured["acceptance_before"] = acceptance
        self._timeline.add(f"speculating: {acceptance:.2f} of the first drafted tokens are kept")
        still = self._metrics.wait(lambda: self._metrics.state() is State.SPECULATING, 30) is not None  # it may have paused meanwhile
        return [Check("speculates before", still, f"acceptance {acceptance:.2f}")]

    def _drift(self) -> list[Check]:
        rounds, begun, falls = self._drafts(), time.monotonic(), falls_by_reason(self._metrics)
        self._swap.touch()
        self._timeline.add("the draft is swapped for one with random weights")
        fallen = self._metrics.wait(lambda: self._metrics.state() in (State.PLAIN, State.PROBING), 30)
        if fallen is None:
            return [Check("falls back in time", False, "no fall-back in 30 s")]
        self.seconds_to_effect = fallen
        spent = self._drafts() - rounds
        self.measured |= {"rounds_to_fall_back": spent}
        self._metrics.wait(lambda: falls_by_reason(self._metrics) != falls, 2)  # the gauge is set a moment before the counter
        reason = main_reason(falls_by_reason(self._metrics) - falls)
        self._timeline.add(f"plain after {time.monotonic() - begun:.2f} s and {spent:.0f} rounds; reason {reason}")
        in_time = fallen < FALL_BACK_SECONDS and spent <= FALL_BACK_ROUNDS
        found = f"{fallen:.2f} s and {spent:.0f} rounds, limits {FALL_BACK_SECONDS:.0f} s and {FALL_BACK_ROUNDS}"
        return [Check("falls back in time", in_time, found), Check("says why", reason == "low_acceptance", reason)]

    def _plain_speed(self) -> list[Check]:
        """Windows in turn (ABBA), so that what else the machine does falls on both. Plain requests decline speculation."""
        speeds: dict[str, list[float]] = {"auto": [], "off": []}
        for pair in range(self._size.pairs):
            for speculation in ("auto", "off") if pair % 2 == 0 else ("off", "auto"):
                speeds[speculation].append(self._speed(speculation))
        fallen, plain = statistics.median(speeds["auto"]), statistics.median(speeds["off"])
        share = statistics.median(ours / other for ours, other in zip(*speeds.values(), strict=True)) if all(speeds["off"]) else 0.0
        self.measured |= {"tokens_per_second_fallen_back": fallen, "tokens_per_second_plain": plain, "share_of_plain": share}
        self._timeline.add(f"fallen back {fallen:.0f} tokens/s, plain {plain:.0f}: {share:.3f}")
        self._load.parameters = {**self._load.parameters, "speculation": "auto"}
        return [Check(AS_FAST_AS_PLAIN, share >= self._size.least_speed, f"{share:.3f}, limit {self._size.least_speed}")]

    def _mend(self) -> list[Check]:
        self._swap.unlink()
        self._timeline.add("the good draft is back")
        limit = 2 * self._size.rearm_after + 5
        kept = self._metrics.value(catalogue.ACCEPTED_TOKENS)

        def returned() -> bool:
            """A state alone may be the one of before the draft came back."""
            return self._metrics.state() is State.SPECULATING and self._metrics.value(catalogue.ACCEPTED_TOKENS) > kept + 20

        back = self._metrics.wait(returned, limit)
        if back is None:
            return [Check("re-arms", False, f"not within {limit:.0f} s")]
        self.measured["seconds_to_rearm"] = back
        acceptance, before = self._acceptance(), self.measured["acceptance_before"]
        self.measured["acceptance_after"] = acceptance
        self._timeline.add(f"speculating again after {back:.2f} s: {acceptance:.2f} of the first drafted tokens are kept")
        good = acceptance >= LEAST_ACCEPTANCE * before
        return [
            Check("re-arms", True, f"{back:.2f} s, limit {limit:.0f} s"),
            Check("acceptance is back", good, f"{acceptance:.2f}, before {before:.2f}, limit {LEAST_ACCEPTANCE} of it"),
        ]

    def _speed(self, speculation: str) -> float:
        self._load.parameters = {**self._load.parameters, "speculation": speculation}
        asked = len(self._load.asked)
        while len(self._load.asked) < asked + self._size.streams:  # what was begun before ends outside the window
            time.sleep(0.01)
        begin = time.monotonic()
        time.sleep(self._size.window)
        end, asked = time.monotonic(), len(self._load.asked)
        while len(self._load.asked) < asked + self._size.streams:  # tokens of a window are known once its requests have ended
            time.sleep(0.01)
        return self._load.tokens_per_second(begin, end)

    def _acceptance(self) -> float:
        """Of the first token of a draft, which K changes nothing about. Answers made while the control paused say nothing of it."""
        begun, wanted = time.monotonic(), TURNS * len(PROMPTS)

        def drafted() -> list[Asked]:
            return [asked for asked in self._load.since(begun) if asked.speculative][:wanted]

        self._metrics.wait(lambda: len(drafted()) >= wanted, LONGEST_WINDOW)
        by_kept = [asked.stats["acceptance_histogram"] for asked in drafted()]
        rounds = sum(map(sum, by_kept))
        return 1 - sum(counts[0] for counts in by_kept) / rounds if rounds else 0.0

    def _drafts(self) -> float:
        return self._metrics.value(catalogue.DRAFTS)


def falls_by_reason(metrics: Metrics) -> Counter[str]:
    """Falls from speculating to plain so far."""
    labels = {"from": State.SPECULATING.value, "to": State.PLAIN.value}
    return Counter({reason.value: int(metrics.value(catalogue.STATE_TRANSITIONS, reason=reason.value, **labels)) for reason in Reason})


def main_reason(falls: Counter[str]) -> str:
    """The most frequent; "none" where none was counted."""
    ((most, count),) = falls.most_common(1) or [("none", 0)]
    return most if count else "none"
