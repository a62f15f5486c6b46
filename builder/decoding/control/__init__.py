"""How many tokens to draft, round by round: measured acceptance, measured costs, and the states that follow.

Pure: no threads, no files, no clock of its own; the time is passed in, so that minutes of traffic are simulated in a moment.
"""

from builder.decoding.control.governor import Governor
from builder.decoding.control.member import Member, SamplingClass, sampling_class
from builder.decoding.control.settings import ControlSettings
from builder.decoding.control.state import Reason, State, Transition

__all__ = ["ControlSettings", "Governor", "Member", "Reason", "SamplingClass", "State", "Transition", "sampling_class"]
