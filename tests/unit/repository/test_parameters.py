from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.decoding.params import SamplingParams
from builder.errors import RequestError
from builder.repository.models.parameters import READERS, Options, read_options
from builder.spec.pipeline import PipelineSpec

SPEC = PipelineSpec.model_validate(
    {
        "metadata": {"name": "p", "owner": "tests"},
        "target": {"weights": "w"},
        "engine": {"max_seq_len": 128},
        "serving": {"default_max_tokens": 7, "max_tokens": 100},
        "chargeback": {"tenants": ["search"]},
    }
)
SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=20))


def test_nothing_asked_is_greedy_with_the_default_length() -> None:
    assert read_options({}, SPEC) == Options(sampling=SamplingParams(max_tokens=7), timeout_ms=600_000)


def test_every_parameter_is_read() -> None:
    asked = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "seed": 3,
        "stop": '["a", "b"]',
        "ignore_eos": True,
        "logprobs": 2,
        "n": 3,
        "priority": 4,
        "timeout_ms": 900,
        "speculation": "off",
        "early_exit": "off",
        "tenant": "search",
        "stream": True,
    }
    sampling = SamplingParams(9, 0.5, 0.9, 40, 0.1, 1.1, 3, ("a", "b"), True, 2, 3)
    expected = Options(sampling, speculation=False, early_exit=False, tenant="search", priority=4, timeout_ms=900, stream=True)
    assert read_options(asked, SPEC) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 101),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("max_tokens", "many"),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "warm"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("seed", 1 << 63),
        ("stop", ""),
        ("stop", '["a", ""]'),
        ("stop", "[1]"),
        ("stop", json.dumps(["x"] * 17)),
        ("ignore_eos", 1),
        ("logprobs", 21),
        ("speculation", "maybe"),
        ("early_exit", "auto"),
        ("stream", "true"),
        ("tenant", 4),
    ],
)
def test_a_bad_value_names_field_value_and_range(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_options({name: value}, SPEC)
    assert caught.value.where == name
    assert repr(value)[:20] in caught.value.what
    assert " is not " in caught.value.what


def test_an_unknown_parameter_names_the_nearest_known_one() -> None:
    with pytest.raises(RequestError, match="Did you mean `temperature`"):
        read_options({"temprature": 1.0}, SPEC)
    with pytest.raises(RequestError, match="Known are cancel, early_exit, id, ignore_eos"):
        read_options({"zzz": 1}, SPEC)


def test_a_stop_string_that_only_looks_like_a_list_is_taken_literally() -> None:
    assert read_options({"stop": "[END"}, SPEC).sampling.stop == ("[END",)


def test_a_number_sent_as_text_is_read() -> None:
    assert read_options({"temperature": "0.7"}, SPEC).sampling.temperature == 0.7


@pytest.mark.parametrize("parameters", [{"tenant": "search"}, {"X-Tenant": "search"}, {"tenant": "search", "x-tenant": "support"}])
def test_the_tenant_comes_from_the_parameter_or_else_the_header(parameters: dict[str, str]) -> None:
    assert read_options(parameters, SPEC).tenant == "search"


def test_a_tenant_that_is_not_listed_counts_as_other() -> None:
    assert read_options({"tenant": "mallory"}, SPEC).tenant == "other"


@given(st.dictionaries(st.one_of(st.sampled_from(sorted(READERS)), st.text(max_size=12)), SCALARS, max_size=6))
def test_any_scalars_give_options_or_a_request_error(parameters: dict[str, Any]) -> None:
    try:
        options = read_options(parameters, SPEC)
    except RequestError as error:
        assert error.where
    else:
        assert 1 <= options.sampling.max_tokens <= 100
        assert options.tenant in ("search", "other")


@given(st.floats(0, 10), st.lists(st.text(min_size=1, max_size=5), max_size=3), st.text(max_size=9), st.booleans())
def test_options_survive_the_way_from_tokenize_to_decode(temperature: float, stops: list[str], request_id: str, stream: bool) -> None:
    options = Options(SamplingParams(temperature=temperature, stop=tuple(stops)), stream=stream, cancel=request_id)
    assert Options.from_json(options.to_json("id")) == ("id", options)


def test_an_id_among_the_parameters_is_kept_for_endpoints_that_carry_none() -> None:
    assert read_options({"id": "mine"}, SPEC).id == "mine"
    assert read_options({}, SPEC).id is None
