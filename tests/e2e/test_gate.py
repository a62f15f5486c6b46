"""Ten versions of SmolLM2 that answer wrong, each in another way: the quality gate lets none of them go live."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from builder.build import build_pipeline
from builder.compile.torch_aot.folder import read_info, write_folder
from builder.errors import CheckError
from builder.files import link_tree
from builder.quality.arms import Arm, ask_all, grade, make_arm
from builder.quality.baseline import Baseline, compare_with
from builder.quality.cases import Case, load_suites
from builder.quality.gates import FAILED, PASSED, live_gate
from builder.quality.protocol import Verification, require, verify
from builder.quality.subject import Subject
from builder.repository.engine import TARGET
from builder.repository.live import serving_version
from builder.repository.models.folder import read_spec
from builder.repository.versions import Version

PIPELINE = Path(__file__).parents[2] / "pipelines" / "smollm2.yaml"
LAYERS = 30
Tensors = dict[str, torch.Tensor]


def reorder(tensors: Tensors, part: str, order: Callable[[int], int]) -> None:
    """Layer i gets the tensors of layer `order(i)` whose names contain `part`."""
    old = dict(tensors)
    for name in old:
        _, _, rest = name.partition("layers.")
        number, _, inner = rest.partition(".")
        if rest and part in inner:
            tensors[name] = old[f"layers.{order(int(number))}.{inner}"]


def change(name: str, to: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        for found in [found for found in tensors if name in found]:
            tensors[found] = to(tensors[found]).contiguous()

    return apply


WRONG: dict[str, Callable[[Tensors], None]] = {
    "the values of every norm are reversed": change("norm", lambda values: values.flip(-1)),
    "every norm has lost its sign": change("norm", lambda values: -values),
    "the layers are in reverse order": lambda tensors: reorder(tensors, "", lambda layer: LAYERS - 1 - layer),
    "the halves of the model are exchanged": lambda tensors: reorder(tensors, "", lambda layer: (layer + LAYERS // 2) % LAYERS),
    "every layer has its neighbour's attention": lambda tensors: reorder(tensors, "qkv", lambda layer: layer ^ 1),
    "every layer has its neighbour's attention output": lambda tensors: reorder(tensors, "output", lambda layer: layer ^ 1),
    "every layer has its neighbour's MLP": lambda tensors: reorder(tensors, "gate_up", lambda layer: layer ^ 1),
    "no layer has an MLP": change("down", torch.zeros_like),
    "every token has its neighbour's embedding": change("embed", lambda rows: rows.roll(1, 0)),
    "every token has another's place in the head": change("head", lambda rows: rows.roll(1, 0)),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Without the minutes of alignment: the draft changes no answer."""
    folder = tmp_path_factory.mktemp("gate")
    spec = yaml.safe_load(PIPELINE.read_text())
    spec["draft"] = {**spec["draft"], "alignment": None}
    (folder / "smollm2.yaml").write_text(yaml.safe_dump(spec))
    build_pipeline(folder / "smollm2.yaml", folder / "model_repository", verify=False)
    return serving_version(folder / "model_repository", "smollm2")


def spoil(good: Version, folder: Path, how: Callable[[Tensors], None]) -> Path:
    """A decode folder like that of `good`, with another target."""
    link_tree(good.decode_folder, folder)
    shutil.rmtree(folder / TARGET)
    with safe_open(good.decode_folder / TARGET / "weights.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("_pad.")}  # noqa: SIM118 - no mapping
    how(tensors)
    write_folder(folder / TARGET, read_info(good.decode_folder / TARGET), tensors)
    return folder


def answered(folder: Path, cases: tuple[Case, ...]) -> Arm:
    """As the version would serve them."""
    subject = Subject.open(folder, read_spec(folder))
    replies = ask_all(subject, cases, speculation=True, advance=lambda: None)
    return make_arm(grade(subject, cases, replies, ()), replies, subject.batch, 1.0)


def baseline(good: Version, cases: tuple[Case, ...]) -> Baseline:
    answers = answered(good.decode_folder, cases).answers
    return Baseline(good.number, {case.id: answer.success for case, answer in zip(cases, answers, strict=True)})


def judged(live: Baseline, arm: Arm, cases: tuple[Case, ...], good: Version) -> str:
    return live_gate(compare_with(live, cases, arm), read_spec(good.decode_folder).quality).verdict


def test_ten_wrong_versions_are_caught_by_ten_facts_and_the_good_one_is_not(good: Version, tmp_path: Path) -> None:
    facts = load_suites(("facts",), PIPELINE.parent, quick=True)[:10]
    live = baseline(good, facts)
    assert judged(live, answered(good.decode_folder, facts), facts, good) == PASSED
    verdicts = {}
    for number, (name, how) in enumerate(WRONG.items()):
        folder = spoil(good, tmp_path / str(number), how)
        verdicts[name] = judged(live, answered(folder, facts), facts, good)
        shutil.rmtree(folder)
    assert verdicts == dict.fromkeys(WRONG, FAILED)


@pytest.mark.slow  # a minute each
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", WRONG)
def test_a_version_that_answers_wrong_is_refused_by_the_gate_of_the_build(good: Version, tmp_path: Path, name: str) -> None:
    live = baseline(good, load_suites(("facts",), PIPELINE.parent, quick=True))
    folder = spoil(good, tmp_path / "wrong", WRONG[name])
    report = verify(Verification(folder, read_spec(folder), PIPELINE.parent, "staged", quick=True, live=live))
    with pytest.raises(CheckError, match="quality gate said no"):
        require(report)
    assert "against_live" in {gate.name for gate in report.refused}
