"""Which cores compute threads run on, and which memory node their weights lie in: engine.threads, affinity and numa on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.errors import EngineError
from builder.spec.engine import Engine

NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Placement:
    """`count` threads, thread i tied to cpus[i]; empty cpus: the system places them. `node_cores` empty: memory of any node."""

    count: int
    cpus: tuple[int, ...] = ()
    node_cores: tuple[int, ...] = ()

    @contextmanager
    def memory(self) -> Iterator[None]:
        """This thread runs on the node meanwhile, so that what it writes first lies there. Without a node nothing happens."""
        if not self.node_cores:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.node_cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    @property
    def described(self) -> str:
        tied = f"tied to cores {', '.join(map(str, self.cpus))}" if self.cpus else "placed by the system"
        memory = f", memory of cores {', '.join(map(str, self.node_cores))}" if self.node_cores else ""
        return f"{self.count} threads {tied}{memory}"


def placed(engine: Engine, allowed: frozenset[int] | None = None, nodes: Mapping[int, frozenset[int]] | None = None) -> Placement:
    """`allowed` are the cores this process may run on, `nodes` the cores of each memory node; both are looked up unless given.

    With fewer cores than threads, threads take turns on them. On a machine with one node `numa` changes nothing.
    Raises EngineError for a core or a node this process cannot have.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    node_cores = _node_cores(engine, allowed, memory_nodes() if nodes is None else nodes)
    usable = node_cores or allowed
    if isinstance(engine.affinity, list):
        if missing := sorted(set(engine.affinity) - usable):
            raise EngineError(
                f"engine.affinity names core {missing[0]}, which this process cannot use",
                where="engine.affinity",
                mend=f"Choose from {_listed(usable)}",
            )
        cpus = tuple(dict.fromkeys(engine.affinity))
    else:
        # without affinity, threads held to a node still need its cores: a mask of all of them for each is not what a team can keep
        cpus = tuple(sorted(usable)) if engine.affinity == "auto" or node_cores else ()
    count = engine.threads or len(cpus or usable)
    return Placement(count, cpus, tuple(sorted(node_cores)))


def memory_nodes(folder: Path = NODES) -> dict[int, frozenset[int]]:
    """Cores of each memory node by its number; empty where the system does not tell."""
    found = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        try:
            found[int(path.parent.name.removeprefix("node"))] = _cores(path.read_text())
        except (OSError, ValueError):
            continue
    return found


def _node_cores(engine: Engine, allowed: frozenset[int], nodes: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Cores to keep to; empty for all."""
    usable = {number: cores & allowed for number, cores in nodes.items() if cores & allowed}
    if isinstance(engine.numa, int):
        if engine.numa not in (usable or {0: allowed}):
            raise EngineError(
                f"engine.numa is {engine.numa}, a node this process has no core of",
                where="engine.numa",
                mend=f"Choose from {_listed(frozenset(usable or {0}))}, auto or none",
            )
        return usable[engine.numa] if len(nodes) > 1 else frozenset()
    if engine.numa == "none" or len(nodes) < 2 or not usable:
        return frozenset()
    return max(usable.values(), key=lambda cores: (len(cores), -min(cores)))


def _cores(text: str) -> frozenset[int]:
    """The kernel's list of ranges: "0-3,8"."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def _listed(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
