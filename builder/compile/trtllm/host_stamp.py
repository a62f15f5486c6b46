"""Write down what engines were compiled with, and compare it with the host that loads them. Runs on a GPU host without builder.

    python3 host_stamp.py write ENGINE_FOLDER...    after trtllm-build
    python3 host_stamp.py check ENGINE_FOLDER...    before tritonserver; exit 1 with one line for each difference

An engine loads only with the TensorRT and on the GPU architecture that it was compiled for, and the server says so late.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

STAMP = "stamp.json"


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("write", "check"):
        sys.stderr.write(__doc__ or "")
        return 2
    verb, *folders = arguments
    host = this_host()
    if verb == "write":
        for folder in map(Path, folders):
            (folder / STAMP).write_text(json.dumps(host, indent=2) + "\n", encoding="utf-8")
        return 0
    lines = [line for folder in map(Path, folders) for line in differences(folder, host)]
    for line in lines:
        sys.stderr.write(line + "\n")
    return 1 if lines else 0


def this_host() -> dict[str, str]:
    import tensorrt
    import tensorrt_llm
    import torch

    major, minor = torch.cuda.get_device_capability()
    return {"tensorrt": tensorrt.__version__, "tensorrt_llm": tensorrt_llm.__version__, "architecture": f"sm_{major}{minor}"}


def differences(folder: Path, host: dict[str, str]) -> list[str]:
    path = folder / STAMP
    if not path.is_file():
        return [f"{path}: missing. Run build_engines.sh on this host."]
    stamp = json.loads(path.read_text(encoding="utf-8"))
    return [
        f"{path}: built with {name} {stamp.get(name)}, this host has {value}. Run build_engines.sh here."
        for name, value in host.items()
        if stamp.get(name) != value
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
