"""Settings of the control. All shares are of time or of a cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControlSettings:
    max_draft_tokens: int = 4
    adaptive: bool = True  # False: always max_draft_tokens, unless the operator says no
    early_stop: bool = False  # drafts end where the draft is too unsure, while the length is adaptive
    rearm_after: float = 10.0  # seconds: the longest wait between two probes
    cool_down: float = 1.0  # seconds: the first wait after a fall-back; doubled by each probe in vain
    probe_share: float = 0.01  # of the time, at most, lost in probes
    memory: int = 64  # rounds the acceptance looks back over (weights fall by e)
    fewest_rounds: int = 8  # rounds before an acceptance is judged
    probe_draft_tokens: int = 2
    margin_down: float = 0.01  # a smaller K, or none, must be so much cheaper
    margin_up: float = 0.03  # a larger K must be so much cheaper
    decide_every: int = 8  # steps between two looks at the costs
    plain_every: int = 100  # rounds between two plain steps that keep the cost of a plain step fresh
