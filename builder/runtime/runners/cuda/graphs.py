"""CUDA graphs of passes that come again: the host starts one graph where it would start a thousand kernels.

Without a GPU nothing is captured: the pass then runs as it is, over the same buffers, so that all but the capture itself is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 96  # graphs; further shapes run without. Each keeps its own activations: a few MB for a small batch
Pass = Callable[[Tensor, Tensor], Tensor]


@dataclass
class _Captured:
    """Buffers that the graph reads and writes, and how it is started."""

    hidden: Tensor
    numbers: Tensor
    made: Tensor
    replay: Callable[[], object]


class Graphs:
    """By shape. Used by one thread, on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._captured: dict[Hashable, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._captured)

    def run(self, shape: Hashable, run: Pass, hidden: Tensor, numbers: Tensor) -> Tensor:
        """What `run(hidden, numbers)` gives; `shape` names what it depends on beside the two. Overwritten by the next call."""
        if shape not in self._captured:
            if len(self._captured) >= MOST:
                return run(hidden, numbers.to(self._device))
            self._captured[shape] = self._capture(run, hidden, numbers)
        captured = self._captured[shape]
        captured.hidden.copy_(hidden)
        captured.numbers.copy_(numbers, non_blocking=True)
        captured.replay()
        return captured.made

    def _capture(self, run: Pass, hidden: Tensor, numbers: Tensor) -> _Captured:
        """The pass runs once before: libraries allocate at their first call, which a graph may not."""
        inputs = hidden.clone(), numbers.to(self._device)
        if self._pool is None:
            made = torch.empty_like(hidden)
            return _Captured(*inputs, made, lambda: made.copy_(run(*inputs)))
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run(*inputs)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            made = run(*inputs)
        return _Captured(*inputs, made, graph.replay)
