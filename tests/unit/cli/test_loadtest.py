"""`builder loadtest` and `python -m loadtest.soak`: what they refuse before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import SpecError
from loadtest.ask import Target
from loadtest.endurance import SoakOptions, plans
from tests.unit.cli.conftest import CallBuilder

PIPELINE = str(Path(__file__).parents[3] / "pipelines" / "smollm2.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "chatt"), "Did you mean chat"),
        (("--rate", "3"), "is closed: it has no rate"),
        (("--url", "nonsense"), "is no host:port"),
        (("--url", "127.0.0.1:9"), "does not serve smollm2"),
    ],
)
def test_wrong_use_is_told_with_code_2(call_builder: CallBuilder, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = call_builder("loadtest", PIPELINE, "--report", str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_soak_refuses_a_workload_whose_answers_cannot_be_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "sampled.yaml"
    file.write_text("description: d\nprompts: {chat: 1}\ntemperature: 0.7\n")
    with pytest.raises(SpecError, match="cannot be asked again"):
        plans(Target("", "", ""), SoakOptions(str(file)))
