"""Published figures of GPUs: memory, bandwidth, arithmetic, architecture. Written down, never measured here."""

from __future__ import annotations

from dataclasses import dataclass

from builder.spec.gpu import GpuName

_MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """`memory` in bytes as the driver reports it, `bandwidth` in bytes/s, `flops` dense BF16 per second (FP16 before Ampere),
    `architecture` is the compute capability times ten: 80 for sm_80."""

    name: GpuName
    memory: int
    bandwidth: float
    flops: float
    architecture: int


def _device(name: GpuName, mib: int, gigabytes_per_second: int, teraflops: int, architecture: int) -> Device:
    return Device(name, mib * _MIB, gigabytes_per_second * 1e9, teraflops * 1e12, architecture)


# From the makers' data sheets (SXM boards where there are several); memory as nvidia-smi lists it.
DEVICES: dict[GpuName, Device] = {
    device.name: device
    for device in (
        _device("A10", 23_028, 600, 125, 86),
        _device("A100-40GB", 40_960, 1_555, 312, 80),
        _device("A100-80GB", 81_920, 2_039, 312, 80),
        _device("B200", 183_359, 8_000, 2_250, 100),
        _device("H100", 81_559, 3_350, 989, 90),
        _device("H200", 143_771, 4_800, 989, 90),
        _device("L4", 23_034, 300, 121, 89),
        _device("L40S", 46_068, 864, 362, 89),
        _device("RTX-4090", 24_564, 1_008, 165, 89),
        _device("RTX-6000-Ada", 49_140, 960, 364, 89),
        _device("T4", 15_360, 320, 65, 75),
        _device("V100-32GB", 32_768, 900, 125, 70),
    )
}

AMPERE = 80  # the first architecture with BF16, and with the INT4-AWQ kernels
