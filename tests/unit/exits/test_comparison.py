"""Kinds of head beside each other: each learns, each says what an exit costs, and a block looks back no further than its answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.align.staging import Parts
from builder.compare_heads import compare_heads
from builder.compile import reference
from builder.compile.torch_aot.folder import read_info
from builder.compile.torch_aot.unpacking import read_tensors, unpack_dense
from builder.exits.block import BlockHead
from builder.exits.comparison import table
from builder.weights import open_checkpoint
from tests.unit.exits.conftest import LAYERS


def test_every_kind_learns_from_the_same_text(pipeline: Path, tmp_path: Path) -> None:
    said: list[str] = []
    rows = compare_heads(pipeline, 60, 12, tmp_path, said.append)
    assert [(row.layer, row.kind) for row in rows] == [
        (layer, kind) for layer in LAYERS for kind in ("affine map", "map and MLP", "transformer block")
    ]
    assert len(said) == len(rows)
    assert all(row.agreement > row.before and 0 <= row.leaving <= 1 and row.milliseconds > 0 for row in rows)
    shown = table(rows).splitlines()
    assert len(shown) == len(rows) + 2 and "transformer block" in shown[-1]
    (text,) = tmp_path.iterdir()
    written = {file.name: file.stat().st_mtime_ns for file in text.iterdir()}
    compare_heads(pipeline, 60, 0, tmp_path, said.append)  # the text is kept
    assert {file.name: file.stat().st_mtime_ns for file in text.glob("portion-*")}.items() <= written.items()


@pytest.mark.parametrize("lengths", [[9], [4, 5]])
def test_an_untrained_block_is_the_targets_next_layer_over_one_answer_at_a_time(pipeline: Path, parts: Parts, lengths: list[int]) -> None:
    target, info = read_tensors(parts.target), read_info(parts.target)
    rows = unpack_dense(target["head.weight"])[:320].float()
    head = BlockHead(target, info.model, 2, rows, seed=0)
    checkpoint = open_checkpoint("tiny", pipeline.parent)
    tensors = checkpoint.tensors(torch.float32)
    found, expected = [], []
    for length in lengths:
        states = reference.hidden_states(tensors, checkpoint.config, torch.arange(3, 3 + length))
        found.append(states[2])
        expected.append(reference._norm(tensors, checkpoint.config, "model.norm", states[3]))
    with torch.no_grad():
        out = head.answers(torch.cat(found), lengths).float()
    torch.testing.assert_close(out, torch.cat(expected), rtol=5e-2, atol=5e-2)
