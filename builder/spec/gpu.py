"""`engine.gpu`: the GPUs a pipeline is served on. `plan` checks against their published figures, so no GPU is needed to ask."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from builder.spec.section import Section, conflict

GpuName = Literal["A10", "A100-40GB", "A100-80GB", "B200", "H100", "H200", "L4", "L40S", "RTX-4090", "RTX-6000-Ada", "T4", "V100-32GB"]


class Gpu(Section):
    """The GPUs of the serving host or hosts."""

    name: GpuName = Field(description="Kind of GPU.")
    count: int = Field(default=1, ge=1, le=1024, description="GPUs, on all nodes together.")
    nodes: int = Field(default=1, ge=1, le=128, description="Machines the GPUs are in; each has the same number.")
    built_on: GpuName | None = Field(
        default=None,
        description="Kind of GPU of the host that compiles the engines; null: the same. An engine runs on its own architecture.",
    )

    @model_validator(mode="after")
    def _nodes_share_evenly(self) -> Self:
        if self.count % self.nodes:
            raise conflict("nodes", f"{self.count} GPUs do not divide into {self.nodes} nodes", "Give each node the same number of GPUs")
        return self

    @property
    def per_node(self) -> int:
        return self.count // self.nodes
