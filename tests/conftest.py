"""What holds for every test: few threads, no model hub, markers by folder, the same examples on every run of CI."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Before torch and the hub client are imported: two threads are what the smallest supported machine has, and no test downloads.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
import torch
from hypothesis import settings

# A shell starts what runs in its background with Ctrl-C ignored, and processes inherit that: the servers that tests start must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FOLDERS = ("unit", "integration", "e2e")

torch.set_num_threads(min(2, torch.get_num_threads()))

# No deadline: a shared machine stalls for longer than any example takes.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(root).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs in `make test-full`"))
