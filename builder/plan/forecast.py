"""What speculation is predicted to give, where the step times come from, and what that leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from builder.plan.context import PlanContext
from builder.plan.cost import Prediction, StepTimes, break_even, predict
from builder.plan.devices import Device
from builder.plan.memory import draft_read_bytes, target_read_bytes
from builder.plan.parameters import count_parameters
from builder.spec.measured import Measured as MeasuredSpec
from builder.weights.config import ModelConfig

ROOFLINE_LEAVES_OUT = (
    "keys and values read, activations, communication between GPUs, kernel launches, sampling and the server; "
    "kernels that reach less than the published bandwidth"
)
MEASURED_LEAVES_OUT = "other batch sizes, prompt lengths and traffic than those the times were measured with; prefill and queueing"


@dataclass(frozen=True)
class Forecast:
    """`prediction` is None where no acceptance is known: then only its break-even can be told."""

    source: Literal["measured", "roofline"]
    times: StepTimes  # seconds
    draft_tokens: int
    prediction: Prediction | None

    @property
    def break_even(self) -> float | None:
        return break_even(self.times, self.draft_tokens)

    def to_json(self) -> dict[str, Any]:
        """Times in milliseconds, figures rounded to two decimals."""
        made, times = self.prediction, self.times
        told: dict[str, Any] = {"source": self.source, "draft_tokens": self.draft_tokens}
        told |= {"plain_ms": _ms(times.plain), "draft_ms": _ms(times.draft), "verify_ms": _ms(times.verify)}
        if made is not None:
            told |= {"acceptance": made.acceptance, "tokens_per_round": round(made.tokens_per_round, 2)}
            told |= {"round_ms": _ms(made.round_time), "ms_per_token": _ms(made.time_per_token), "speedup": round(made.speed_up, 2)}
        least = self.break_even
        told["break_even_acceptance"] = None if least is None else round(least, 3)
        told["leaves_out"] = MEASURED_LEAVES_OUT if self.source == "measured" else ROOFLINE_LEAVES_OUT
        return told


def measured_forecast(times: StepTimes, acceptance: float, draft_tokens: int) -> Forecast:
    return Forecast("measured", times, draft_tokens, predict(times, acceptance, draft_tokens))


def stated_times(measured: MeasuredSpec | None) -> StepTimes | None:
    """Step times that the pipeline states, in seconds."""
    if measured is None or measured.plain_ms is None or measured.draft_ms is None or measured.verify_ms is None:
        return None
    return StepTimes(measured.plain_ms / 1e3, measured.draft_ms / 1e3, measured.verify_ms / 1e3)


def roofline_forecast(context: PlanContext, acceptance: float | None) -> Forecast | None:
    """One stream on the GPU that serves. None on a CPU, whose bandwidth nobody publishes, and without drafts."""
    draft_tokens = context.draft_tokens
    if context.device is None or draft_tokens == 0:
        return None
    times = roofline_times(context, context.device, draft_tokens)
    return Forecast("roofline", times, draft_tokens, None if acceptance is None else predict(times, acceptance, draft_tokens))


def roofline_times(context: PlanContext, device: Device, draft_tokens: int) -> StepTimes:
    """Seconds of a step of one sequence: the larger of reading its weights once and of its multiplications (M1).

    Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009). A model split over
    n GPUs has n times bandwidth and arithmetic. A draft that only looks text up costs nothing.
    """
    trt = context.spec.engine.trt
    split = trt.target if context.spec.engine.chosen_backend == "trtllm-llmapi" else trt.draft
    size, draft_size = target_read_bytes(context), draft_read_bytes(context) or 0
    target_gpus, draft_gpus = trt.target.world_size, split.world_size
    draft = _step(device, draft_gpus, draft_size, context.cut_draft, 1) if context.cut_draft else 0.0
    return StepTimes(
        plain=_step(device, target_gpus, size, context.target, 1),
        draft=draft,
        verify=_step(device, target_gpus, size, context.target, draft_tokens + 1),
    )


def _step(device: Device, gpus: int, read: int, model: ModelConfig, rows: int) -> float:
    count = count_parameters(model)
    operations = 2 * (count.linear + count.head) * rows  # a multiplication and an addition for each weight and row
    return max(read / device.bandwidth, operations / device.flops) / gpus


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
