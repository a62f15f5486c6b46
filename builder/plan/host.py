"""The machine the engines will run on: memory, cores, CPU instructions. Imports nothing heavy, so `doctor` can use it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
# Container limits, cgroup v2 and v1. Without a limit the files hold "max" or a number beyond any machine.
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

# CPU flags (as /proc/cpuinfo names them) that each engine.instruction_set needs, best first.
INSTRUCTION_SETS = {
    "amx": {"amx_tile", "amx_bf16"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
    "generic": set[str](),
}


@dataclass(frozen=True)
class Host:
    """memory in bytes, the container's limit when that is smaller; instruction_sets best first."""

    memory: int
    cores: int
    instruction_sets: tuple[str, ...] = ("generic",)


def this_host() -> Host:
    return Host(memory=_memory(), cores=len(os.sched_getaffinity(0)), instruction_sets=instruction_sets(cpu_flags()))


def instruction_sets(flags: frozenset[str]) -> tuple[str, ...]:
    """Names of engine.instruction_set this CPU can run, best first."""
    return tuple(name for name, needed in INSTRUCTION_SETS.items() if needed <= flags)


def cpu_flags() -> frozenset[str]:
    """Flags of the first CPU; empty where the kernel does not list them."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return frozenset()
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.partition(":")[2].split())


def _memory() -> int:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(limit for path in MEMORY_LIMITS if (limit := _limit(path)) is not None)])


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
