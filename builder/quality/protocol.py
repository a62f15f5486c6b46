"""One verification of a version, step by step (M18): baseline, identity, drift, distribution, gates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import CheckError
from builder.progress import NoProgress, Progress
from builder.quality import gates
from builder.quality.arms import Arm, Graded, ask_all, grade, make_arm
from builder.quality.baseline import Baseline, compare_with
from builder.quality.cases import Case, load_suites
from builder.quality.contexts import choose_contexts
from builder.quality.distribution import FULL_SAMPLING, QUICK_SAMPLING, Distribution, compare, requests
from builder.quality.drift import measure_drift
from builder.quality.identity import differences
from builder.quality.report import Report
from builder.quality.statistics import paired_bootstrap
from builder.quality.subject import Subject
from builder.quality.votes import Votes
from builder.repository.manifest import now
from builder.spec.pipeline import PipelineSpec

QUICK_SAMPLES, FULL_SAMPLES = 300, 2000  # requests an arm, context and sampling; the control needs enough of them to be caught
QUICK_CONTEXTS, FULL_CONTEXTS = 1, 3


@dataclass(frozen=True)
class Verification:
    """What to verify: `base` is where the spec's paths start, `live` what the version in service showed."""

    folder: Path  # `<p>_decode/N`, staged or published
    spec: PipelineSpec
    base: Path
    version: str
    quick: bool
    live: Baseline | None = None
    votes: Votes | None = None


def verify(wanted: Verification, progress: Progress | None = None) -> Report:
    """Raises SpecError for a suite that cannot be read, EngineError when the version cannot run on this machine."""
    began, progress = time.monotonic(), progress or NoProgress()
    spec, limits = wanted.spec, wanted.spec.quality
    cases = load_suites(limits.suites, wanted.base, quick=wanted.quick)
    subject = Subject.open(wanted.folder, spec)
    plain = _arm(subject, cases, (), progress, speculation=False)
    optimised = _arm(subject, cases, plain.answers, progress, speculation=True)
    parted = differences(subject, cases, plain, optimised)
    distribution = _distribution(subject, cases, plain, wanted.quick, limits.significance, progress)
    drift = measure_drift(plain, optimised)
    against = compare_with(wanted.live, cases, optimised) if wanted.live else None
    change = paired_bootstrap([float(answer.success) for answer in plain.answers], [float(answer.success) for answer in optimised.answers])
    differing = paired_bootstrap([0.0] * len(cases), [answer.differing for answer in optimised.answers])
    return Report(
        pipeline=spec.metadata.name,
        version=wanted.version,
        form="quick" if wanted.quick else "full",
        created=now(),
        seconds=time.monotonic() - began,
        cases=cases,
        plain=plain,
        optimised=optimised,
        differences=tuple(parted),
        distribution=distribution,
        drift=tuple(drift),
        against_live=against,
        votes=wanted.votes,
        gates=(
            gates.identity_gate(1.0 - len(parted) / len(cases), len(cases), optimised.rounds, subject.speculates, limits),
            gates.distribution_gate(distribution, limits),
            gates.exit_gate(differing, subject.exits_early, limits),
            gates.success_gate(change, plain.success, optimised.success, limits),
            gates.live_gate(against, limits),
            gates.drift_gate(drift, limits),
        ),
    )


def require(report: Report) -> None:
    """CheckError that names what keeps the version from going live."""
    if report.refused:
        what = "; ".join(f"{gate.name} {gate.verdict}: {gate.says}" for gate in report.refused)
        mend = "Mend the cause, or change the limit under `quality` if it is wrong; `builder build --no-verify` publishes unproven"
        raise CheckError(f"the quality gate said no: {what}", where=report.pipeline, mend=mend)


def _arm(subject: Subject, cases: Sequence[Case], known: Sequence[Graded], progress: Progress, *, speculation: bool) -> Arm:
    title = "answers as served" if speculation else "answers, plain decoding"
    progress.stage(title, len(cases))
    began = time.perf_counter()
    replies = ask_all(subject, cases, speculation=speculation, advance=lambda: progress.advance("answer"))
    seconds = time.perf_counter() - began
    answers = grade(subject, cases, replies, known)
    subject.reset()
    return make_arm(answers, replies, subject.batch, seconds)


def _distribution(
    subject: Subject, cases: Sequence[Case], plain: Arm, quick: bool, significance: float, progress: Progress
) -> Distribution:
    if not subject.speculates:
        return Distribution(significance=significance, note="nothing speculates")
    contexts = choose_contexts(subject, cases, plain, QUICK_CONTEXTS if quick else FULL_CONTEXTS)
    subject.reset()
    if not contexts:
        return Distribution(significance=significance)  # no answer to continue: inconclusive
    samplings, samples = (QUICK_SAMPLING, QUICK_SAMPLES) if quick else (FULL_SAMPLING, FULL_SAMPLES)
    progress.stage("sampled distributions", requests(len(contexts), len(samplings), samples))
    return compare(subject, contexts, samplings, samples, significance, lambda: progress.advance("sample"))
