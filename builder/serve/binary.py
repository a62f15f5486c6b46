"""Where tritonserver is, and the private backend folder it runs with.

The wheel nvidia-pytriton carries the server, the python backend, and a stub (the process that runs a model.py) for each
Python version; the backend looks for the stub beside itself, so backend and stub meet in a folder of our own and
site-packages stays untouched.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import builder
from builder.errors import ServeError

STUB = "triton_python_backend_stub"
INSTALL = "Install nvidia-pytriton, or give --triton-binary"


@dataclass(frozen=True)
class TritonBinary:
    """A server binary, its backends, and the folders with the libraries it links."""

    server: Path
    backends: Path
    libraries: tuple[Path, ...] = ()
    stub: Path | None = None  # for this Python; None when the backends already have theirs


def find_binary(given: Path | None = None) -> TritonBinary:
    """The given tritonserver (its backends are `backends/` beside its `bin/`), else the wheel's. ServeError when there is none."""
    if given is not None:
        server = given.expanduser().resolve()
        backends = server.parent.parent / "backends"
        if not os.access(server, os.X_OK) or not server.is_file():
            raise ServeError("not an executable file", where=str(server), mend="Give --triton-binary the path of tritonserver")
        if not (backends / "python").is_dir():
            raise ServeError("has no python backend", where=str(backends), mend="Use a Triton image or build with the python backend")
        return TritonBinary(server, backends)
    spec = importlib.util.find_spec("pytriton")  # located, not imported: importing it starts its own machinery
    if spec is None or not spec.submodule_search_locations:
        raise ServeError("no tritonserver found", mend=INSTALL)
    package = Path(next(iter(spec.submodule_search_locations)))
    root = package / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / python / STUB
    if not stub.is_file():
        have = ", ".join(sorted(folder.name for folder in (root / "python_backend_stubs").glob("*")))
        raise ServeError(f"tritonserver has no stub for Python {python} (it has {have})", where=str(root), mend="Use one of these versions")
    return TritonBinary(root / "bin" / "tritonserver", root / "backends", (package.parent / "nvidia_pytriton.libs",), stub)


def make_backends(binary: TritonBinary, folder: Path) -> Path:
    """Fill `folder` with the python backend for this interpreter: links to its files, the stub, and `builder` itself.

    The stub's search path has the backend's folder but neither PYTHONPATH nor the working directory, so a link to the
    package makes `import builder` work however it was installed.
    """
    source = binary.backends / "python"
    python = folder / "python"
    python.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.name != STUB:
            (python / file.name).symlink_to(file)
    shutil.copy2(binary.stub or source / STUB, python / STUB)
    (python / STUB).chmod(0o755)
    (python / "builder").symlink_to(Path(builder.__file__).parent)
    return folder


def environment(binary: TritonBinary) -> dict[str, str]:
    """The server's environment. The stub finds this interpreter (and its venv) through PATH, libpython through LD_LIBRARY_PATH."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    libraries = [str(sysconfig.get_config_var("LIBDIR")), *map(str, binary.libraries)]
    known = inherited.get("LD_LIBRARY_PATH")
    search = [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
    return inherited | {"PATH": os.pathsep.join(search), "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *([known] if known else [])])}
