"""The C++ kernel library: one source compiled for each instruction set, linked into a torch extension, cached by content."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from builder.compile.cache import cached_folder
from builder.errors import BuildError

LIBRARY = "kernels.so"
SOURCES = Path(__file__).parent / "kernels"
# -ffp-contract=off: a compiler that fuses here and not there would make a row's bits depend on how many rows share a pass.
FLAGS = [
    "-O3",
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",  # rows of floats become bfloat16 in place
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
]
AVX512 = ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-DTANDEM_WIDE=1", '-DTANDEM_LANES="lanes_avx512.h"']
INSTRUCTION_SETS: dict[str, list[str]] = {
    "amx": [*AVX512, "-mamx-tile", "-mamx-bf16", "-DTANDEM_AMX=1"],
    "avx512": AVX512,
    "avx2": ["-march=x86-64-v3", '-DTANDEM_LANES="lanes_avx2.h"'],
    "generic": ['-DTANDEM_LANES="lanes_generic.h"'],
}


def source_fingerprint() -> str:
    """SHA-256 over the sources, flags, compiler and torch version: what decides the library's bytes."""
    import torch

    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr((FLAGS, INSTRUCTION_SETS, torch.__version__, platform.machine(), _compiler_version())).encode())
    return digest.hexdigest()


def build_library(cache: Path, advance: Callable[[str], None] = lambda _: None) -> Path:
    """Compile the kernels into the folder cache/kernels-<fingerprint> unless it is there; return the folder.

    `advance(step)` is called after each compiled file. Raises BuildError when there is no compiler, or it fails.
    """

    def compile_into(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as objects:
            jobs = _jobs(Path(objects))
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for name in pool.map(_compile, jobs):
                    advance(name)
            _run([_compiler(), "-shared", "-o", str(folder / LIBRARY), *(job[-1] for job in jobs), *_link_flags()])

    return cached_folder(cache, folder_name(source_fingerprint()), compile_into)


def folder_name(fingerprint: str) -> str:
    """Of the library with this source fingerprint, inside the engine cache."""
    return f"kernels-{fingerprint[:16]}"


def _jobs(folder: Path) -> list[list[str]]:
    sets = INSTRUCTION_SETS if platform.machine() == "x86_64" else {"generic": INSTRUCTION_SETS["generic"]}
    base = [_compiler(), *FLAGS, "-c"]
    jobs = [[*base, *_torch_flags(), str(SOURCES / "binding.cpp"), "-o", str(folder / "binding.o")]]  # the longest first
    for name, flags in sets.items():
        jobs.append([*base, *flags, f"-DTANDEM_ISA=make_decoder_{name}", str(SOURCES / "decoder.cpp"), "-o", str(folder / f"{name}.o")])
    jobs.append([*base, str(SOURCES / "team.cpp"), "-o", str(folder / "team.o")])
    return jobs


def _compile(command: list[str]) -> str:
    _run(command)
    return Path(command[-1]).stem


def _compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if not found:
        raise BuildError("there is no C++ compiler", mend="Install g++ 12 or newer (Debian: apt-get install g++), or name one in CXX")
    return found


def _compiler_version() -> str:
    return _run([_compiler(), "-dumpfullversion", "-dumpmachine"])


def _torch_flags() -> list[str]:
    import torch
    from torch.utils.cpp_extension import include_paths

    # -isystem: torch's own headers are not held to our warnings
    return [*(f"-isystem{path}" for path in include_paths()), f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def _link_flags() -> list[str]:
    from torch.utils.cpp_extension import library_paths

    return [*(f"-L{path}" for path in library_paths()), "-ltorch", "-ltorch_cpu", "-lc10", "-lpthread"]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-3:]
        raise BuildError(
            f"the compiler failed on the kernels: {' | '.join(lines[:3])}", mend="Run `builder doctor`; g++ 12 or newer is needed"
        )
    return done.stdout
