"""What one run of the clients is to do: written to a file for the client process, and sent to Locust's workers."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loadtest.ask import Target
from loadtest.timetable import SPECULATION, Block
from loadtest.workload import Workload


@dataclass(frozen=True)
class Plan:
    """`rate`: requests a second of an open workload. `live_port`: where the clients' own metrics are, if anywhere."""

    workload: Workload
    target: Target
    users: int
    blocks: tuple[Block, ...]
    rate: float | None = None
    workers: int = 0
    live_port: int | None = None
    seed: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def target_of(self, block: Block) -> Target:
        return replace(self.target, speculation=SPECULATION.get(block.arm))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload": self.workload.model_dump(mode="json")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        workload, target = Workload.model_validate(data["workload"]), Target(**data["target"])
        return cls(**{**data, "workload": workload, "target": target, "blocks": tuple(Block(**block) for block in data["blocks"])})
