"""What `builder exporter` adds to Triton's own port: things the serving process does not know. Label of all: model."""

from __future__ import annotations

from typing import Literal

from builder.telemetry.catalogue import PREFIX, Metric


def _metric(name: str, kind: Literal["counter", "gauge"], text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, kind, text, labels)


SLO_OBJECTIVE = _metric("slo_objective_seconds", "gauge", "What `slo` in the pipeline promises, by its key", "slo")
SLO_P95 = _metric("slo_p95_seconds", "gauge", "95th percentile of the last five minutes; absent when nothing was observed in them", "slo")
SLO_MET = _metric("slo_met", "gauge", "1 while the percentile is within its objective, else 0; absent when nothing was observed", "slo")
SLO_OBSERVED = _metric(
    "slo_observations_total", "counter", "Observations of the server's histograms, by the objective they belong to", "slo"
)
SLO_SLOW = _metric("slo_slow_observations_total", "counter", "Those above the objective: a p95 allows one in twenty", "slo")
PIPELINE_INFO = _metric("pipeline_info", "gauge", "Always 1; the labels say whose pipeline it is", "owner", "builder_version")
NEWEST_VERSION = _metric("newest_version", "gauge", "Number of the newest version in the repository")
TENANT_FLAG = _metric("tenant_flag", "gauge", "Flags in force for tenants that have their own: 1 on, 0 off", "name", "tenant")
QUALITY_RESULT = _metric(
    "quality_result", "gauge", "Numbers that the build measured on the live version, by their place in its manifest", "result"
)
PRICE = _metric("price_per_million_tokens", "gauge", "Price of a million tokens, as `chargeback` says", "token_type", "currency")
TRITON_UP = _metric("triton_up", "gauge", "1 when the metrics port of the server answered, else 0")
PROCESS_CPU = _metric(
    "process_cpu_seconds_total", "counter", "CPU time of the server's processes: tritonserver and one for each model", "process"
)
PROCESS_MEMORY = _metric("process_resident_bytes", "gauge", "Resident memory of the server's processes", "process")
GPU = _metric("gpu", "gauge", "Always 1; state is present when the server reports nv_gpu_utilization, absent when it does not", "state")

EXPORTER_CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
