"""What building and serving need of this machine, one function for each thing. `builder doctor` prints it.

Nothing here imports torch at the top: doctor must be able to say that it is broken.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from builder.errors import EngineError
from builder.plan.finding import Finding
from builder.plan.host import Host, gpu_memory, this_host
from builder.plan.placement import memory_nodes, placed
from builder.plan.wording import listed
from builder.spec.engine import Engine
from builder.spec.serving import Serving
from builder.spec.sizes import approximate_bytes

PYTHONS = ((3, 11), (3, 12))
LEAST_MEMORY = 2 << 30  # bytes; the demo's weights, a small KV cache and Triton's processes
LEAST_SHARED_MEMORY = 64 << 20  # bytes; each Python model of Triton maps a few MiB and grows them with its tensors
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # looked at, not written to
COMPILE_SECONDS = 60


def examine(serving: Serving, engine: Engine | None = None) -> list[Finding]:
    """Every finding, in the order in which one would mend them."""
    host = this_host()
    checks = [python_supported(sys.version_info[:2]), numpy_is_1(_version("numpy")), torch_imports(), compiler_works(), libpython_found()]
    checks += [
        tritonserver_found(_pytriton()),
        instructions(host),
        threads_placed(engine or Engine()),
        *([gpu_found(gpu_memory())] if engine is not None and engine.device == "cuda" else []),
        memory_suffices(host),
        shared_memory_suffices(SHARED_MEMORY),
    ]
    return [*checks, *(port_free(serving.host, name, port) for name, port in serving.ports.items())]


def python_supported(version: tuple[int, ...]) -> Finding:
    name = ".".join(map(str, version))
    supported = listed([".".join(map(str, each)) for each in PYTHONS], "or")
    if version in PYTHONS:
        return Finding("python", True, f"Python {name}")
    return Finding("python", False, f"Python {name} is not supported", f"Use Python {supported}")


def numpy_is_1(version: str | None) -> Finding:
    """The server's python backend is built against numpy 1 and fails on arrays of numpy 2."""
    if version is not None and version.startswith("1."):
        return Finding("numpy", True, f"numpy {version}")
    return Finding("numpy", False, f"numpy {version}" if version else "numpy is missing", 'Install "numpy<2"')


def torch_imports() -> Finding:
    try:
        import torch
    except Exception as error:  # a broken wheel fails in many ways: ImportError, OSError of a library, RuntimeError
        return Finding("torch", False, f"torch cannot be imported: {error}", "Install torch (a CPU build is enough)")
    return Finding("torch", True, f"torch {torch.__version__}")


def compiler_works(compiler: str | None = None) -> Finding:
    """Compiles a line with a C++17 header: a g++ without its library headers is found but of no use."""
    command = shutil.which(compiler or os.environ.get("CXX", "g++"))
    mend = "Install g++ (Debian and Ubuntu: apt install g++) or name a compiler in CXX"
    if command is None:
        return Finding("compiler", False, "no C++ compiler", mend)
    source = "#include <optional>\nstd::optional<int> answer;\n"
    arguments = [command, "-std=c++17", "-x", "c++", "-fsyntax-only", "-"]
    try:
        done = subprocess.run(arguments, input=source, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("compiler", False, f"{command} cannot be run: {error}", mend)
    if done.returncode:
        return Finding("compiler", False, f"{command} cannot compile C++17: {done.stderr.strip().splitlines()[:1]}", mend)
    return Finding("compiler", True, command)


def libpython_found() -> Finding:
    """Triton's python backend starts a stub that loads the shared libpython."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so"
    folders = {sysconfig.get_config_var("LIBDIR"), str(Path(sys.base_prefix) / "lib"), sysconfig.get_config_var("LIBPL")}
    multiarch = sysconfig.get_config_var("MULTIARCH")
    candidates = [Path(folder) / part for folder in folders if folder for part in ("", multiarch or "")]
    found = next((path for folder in sorted(set(candidates)) for path in sorted(folder.glob(f"{name}*"))), None)
    if found:
        return Finding("libpython", True, str(found))
    return Finding("libpython", False, f"no shared {name}", "Use a Python built with --enable-shared (Debian: apt install libpython3-dev)")


def tritonserver_found(package: Path | None) -> Finding:
    """`package` is the folder of the pytriton package, whose wheel carries the server."""
    mend = 'Install "nvidia-pytriton>=0.7,<0.8", or give `builder serve` a server with --triton-binary'
    if package is None:
        return Finding("tritonserver", False, "the nvidia-pytriton package is missing", mend)
    server = package / "tritonserver" / "bin" / "tritonserver"
    stub = package / "tritonserver" / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    missing = [str(path) for path in (server, stub) if not path.exists()]
    if missing:
        return Finding("tritonserver", False, f"{listed(missing)} missing from the nvidia-pytriton package", mend)
    return Finding("tritonserver", True, f"{server} (nvidia-pytriton {_version('nvidia-pytriton')})")


def instructions(host: Host) -> Finding:
    return Finding("instruction-set", True, f"{host.instruction_sets[0]} (can run {listed(host.instruction_sets)}), {host.cores} cores")


def threads_placed(engine: Engine, nodes: Mapping[int, frozenset[int]] | None = None) -> Finding:
    nodes = memory_nodes() if nodes is None else nodes
    try:
        placement = placed(engine, nodes=nodes)
    except EngineError as error:
        return Finding("thread-placement", False, error.what, error.mend or "")
    told = f"{max(1, len(nodes))} memory node{'s' if len(nodes) > 1 else ''}"
    if engine.numa != "none" and len(nodes) < 2:
        told += f", so engine.numa {engine.numa} changes nothing"
    return Finding("thread-placement", True, f"{placement.described}; {told}")


def gpu_found(memory: int | None) -> Finding:
    if memory is not None:
        return Finding("gpu", True, f"{approximate_bytes(memory)} on the first GPU")
    return Finding("gpu", False, "torch sees no CUDA GPU", "Look at nvidia-smi, and install a CUDA build of torch (docs/gpu.md)")


def memory_suffices(host: Host) -> Finding:
    if host.memory >= LEAST_MEMORY:
        return Finding("memory", True, approximate_bytes(host.memory))
    return Finding("memory", False, approximate_bytes(host.memory), f"Give the machine or container {approximate_bytes(LEAST_MEMORY)}")


def shared_memory_suffices(folder: Path) -> Finding:
    """Triton and its Python models exchange tensors through shared memory."""
    if not folder.is_dir():
        return Finding("shared-memory", False, f"no {folder}", "Mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    if free >= LEAST_SHARED_MEMORY:
        return Finding("shared-memory", True, f"{approximate_bytes(free)} free in {folder}")
    mend = "Start the container with a larger --shm-size, or remove what stopped processes left there"
    return Finding("shared-memory", False, f"{approximate_bytes(free)} free in {folder}", mend)


def port_free(host: str, name: str, port: int) -> Finding:
    """Binds as a server would: SO_REUSEADDR passes over connections that are only closing down."""
    rule = f"port-{name}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return Finding(
            rule, False, f"{host}:{port} cannot be used: {error.strerror}", f"Free it, or set serving.{name}_port or serving.host"
        )
    return Finding(rule, True, f"{host}:{port} is free")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pytriton() -> Path | None:
    """Found without importing it: its import starts more than a look-up needs."""
    found = importlib.util.find_spec("pytriton")
    return Path(found.origin).parent if found and found.origin else None
