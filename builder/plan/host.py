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
    """memory in bytes, the container's limit when that is smaller; instruction_sets best first. gpu_memory in bytes, of the first GPU
    that torch sees; None where it sees none, or nobody asked."""

    memory: int
    cores: int
    instruction_sets: tuple[str, ...] = ("generic",)
    gpu_memory: int | None = None


def this_host(*, gpu: bool = False) -> Host:
    """With `gpu` torch is asked for one."""
    cores, sets = len(os.sched_getaffinity(0)), instruction_sets(cpu_flags())
    return Host(_memory(), cores, sets, gpu_memory() if gpu else None)


def gpu_memory() -> int | None:
    """Bytes of the first CUDA GPU that torch sees; None where it sees none."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


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
