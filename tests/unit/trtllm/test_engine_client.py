"""The tensors that go to the two models are those of the configurations that are handed over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

from builder.build import NoProgress
from builder.decoding.params import SamplingParams
from builder.errors import EngineError, RepositoryError
from builder.plan.context import PlanContext
from builder.repository.engine_client import Connection, EngineClient, tensors
from builder.repository.handover import hand_over
from builder.repository.layout import GRPC_ADDRESS
from builder.repository.models.folder import read_spec
from builder.repository.pair import grpc_address, open_pair
from builder.repository.trtllm_configs import engine_configs
from builder.runtime.engine_model import EngineCall

LOGITS = np.zeros((2, 320), np.float32)
CALLS = {
    "greedy": EngineCall((1, 2, 3), 3, SamplingParams(repetition_penalty=1.2), draft=(4, 5)),
    "sampled": EngineCall(
        (1, 2, 3), 3, SamplingParams(temperature=0.7, top_p=0.9, top_k=40), seed=2**64 - 1, draft=(4, 5), draft_logits=LOGITS
    ),
    "draft": EngineCall((1, 2, 3), 2, SamplingParams(temperature=0.7), seed=1, returns_logits=True),
    "stream": EngineCall((1, 2, 3), 9, SamplingParams(), streams=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_tensor_is_an_input_of_the_configuration_in_its_type_and_shape(
    make_plan_context: Callable[..., PlanContext], name: str
) -> None:
    config = engine_configs(make_plan_context())["tiny_draft" if name == "draft" else "tiny_target"]
    inputs = {tensor.name: tensor for tensor in config.input}
    given = tensors(CALLS[name])
    assert {tensor.name for tensor in config.input if not tensor.optional} <= given.keys() <= inputs.keys()
    for tensor, value in given.items():
        assert pb.DataType.Name(inputs[tensor].data_type) == f"TYPE_{np_to_triton_dtype(value.dtype)}"
        assert value.shape[0] == 1 and len(value.shape) == 1 + len(inputs[tensor].dims)
        assert all(dim in (-1, size) for dim, size in zip(inputs[tensor].dims, value.shape[1:], strict=True))


def test_only_a_stream_asks_for_one() -> None:
    assert {name: tensors(call)["streaming"].item() for name, call in CALLS.items()} == {name: name == "stream" for name in CALLS}


def test_greedy_says_top_k_1_and_no_temperature() -> None:
    """A temperature of 0 divides by it."""
    greedy, sampled = tensors(CALLS["greedy"]), tensors(CALLS["sampled"])
    assert greedy["runtime_top_k"].item() == 1 and "temperature" not in greedy and "seed" not in greedy
    assert sampled["temperature"].item() == pytest.approx(0.7) and sampled["seed"].item() == 2**64 - 1
    assert not any("end_id" in tensors(call) for call in CALLS.values())


def test_a_server_that_is_not_there_is_an_engine_error() -> None:
    async def ask() -> None:
        connection = Connection("127.0.0.1:9")
        try:
            async for _ in EngineClient(connection, "tiny_target").generate(CALLS["greedy"]):
                pass
        finally:
            await connection.close()

    with pytest.raises(EngineError, match="tiny_target"):
        asyncio.run(ask())


def test_the_address_is_what_the_server_says_else_what_the_launch_script_gives(
    make_plan_context: Callable[..., PlanContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_plan_context(serving={"host": "0.0.0.0", "grpc_port": 9001}).spec  # noqa: S104 - read, not bound
    monkeypatch.delenv(GRPC_ADDRESS, raising=False)
    assert grpc_address(spec) == "127.0.0.1:9001"
    monkeypatch.setenv(GRPC_ADDRESS, "127.0.0.1:7")
    assert grpc_address(spec) == "127.0.0.1:7"


@pytest.mark.parametrize("drafts", [True, False])
def test_a_hand_over_holds_a_version_whose_decode_model_opens(
    write_pipeline: Any, exported: list[Any], tmp_path: Path, drafts: bool
) -> None:
    plain = {} if drafts else {"draft": None, "speculation": {"proposer": "none"}}
    made = hand_over(write_pipeline(**plain), tmp_path / "out", tmp_path / "cache", NoProgress())
    repository = tmp_path / "out" / "model_repository"
    assert set(made.models) == {
        path.name for path in repository.iterdir() if not path.name.startswith(".") and (path / "config.pbtxt").exists()
    }
    assert {"tiny", "tiny_tokenize", "tiny_decode", "tiny_detokenize", "tiny_target"} <= set(made.models)
    version = repository / "tiny_decode" / "1"
    assert not (version / "target").exists(), "the weights are the engines' affair"
    engine = open_pair(version, read_spec(version))
    assert engine.control_report().draft_tokens == (3 if drafts else 0)
    assert json.loads((version / "pair" / "pair.json").read_text()) == {"vocab_size": 320, "models": ["target", "draft"][: 1 + drafts]}


def test_a_version_that_is_not_whole_is_refused(write_pipeline: Any, exported: list[Any], tmp_path: Path) -> None:
    hand_over(write_pipeline(), tmp_path / "out", tmp_path / "cache", NoProgress())
    version = tmp_path / "out" / "model_repository" / "tiny_decode" / "1"
    (version / "pair" / "pair.json").unlink()
    with pytest.raises(RepositoryError, match=r"pair\.json"):
        open_pair(version, read_spec(version))
