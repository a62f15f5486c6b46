from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from builder.errors import RepositoryError
from builder.repository import config_pbtxt
from builder.repository.ensemble import ModelNames, model_configs

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@given(NAMES)
def test_a_configuration_survives_writing_and_parsing(name: str) -> None:
    for config in model_configs(name, 3, [2]).values():
        assert config_pbtxt.parse(config_pbtxt.to_text(config)) == config


@given(NAMES)
def test_every_tensor_of_the_ensemble_is_made_before_it_is_read_and_only_once(name: str) -> None:
    configs = model_configs(name, 1)
    ensemble = configs[name]
    made = {tensor.name for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = configs[step.model_name]
        assert set(step.input_map) == {tensor.name for tensor in model.input}
        assert set(step.output_map) == {tensor.name for tensor in model.output}
        assert set(step.input_map.values()) <= made
        assert not set(step.output_map.values()) & made
        made |= set(step.output_map.values())
    assert {tensor.name for tensor in ensemble.output} <= made


def test_only_decode_and_the_ensemble_are_decoupled() -> None:
    decoupled = {name for name, config in model_configs("p", 1).items() if config.model_transaction_policy.decoupled}
    assert decoupled == {"p", "p_decode"}


def test_an_answer_never_mixes_members_of_two_versions_whatever_is_loaded() -> None:
    configs = model_configs("p", 3, [2])
    assert {step.model_version for step in configs["p"].ensemble_scheduling.step} == {3}
    assert list(configs["p"].version_policy.specific.versions) == [3]
    for member in ModelNames.of("p").members:
        assert list(configs[member].version_policy.specific.versions) == [2, 3]


def test_the_ensemble_is_published_last() -> None:
    assert ModelNames.of("p").publish_order()[-1] == "p"


def test_an_unknown_field_is_refused_with_its_line() -> None:
    with pytest.raises(RepositoryError, match=r"config\.pbtxt:2: .*max_bacth_size"):
        config_pbtxt.parse('name: "p"\nmax_bacth_size: 3\n')


def test_an_unchanged_configuration_is_not_touched(tmp_path: Path) -> None:
    config_pbtxt.write(tmp_path, ModelConfig(name="p"))
    before = (tmp_path / "config.pbtxt").stat()
    config_pbtxt.write(tmp_path, ModelConfig(name="p"))
    after = (tmp_path / "config.pbtxt").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    config_pbtxt.write(tmp_path, ModelConfig(name="q"))
    assert config_pbtxt.read(tmp_path).name == "q"
