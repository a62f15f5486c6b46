"""The command line: exit codes, one paragraph on stderr, JSON alone on stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.cli import doctor, main, plan
from builder.errors import CheckError, WeightsError
from builder.plan.cost import StepTimes
from builder.plan.finding import Finding
from builder.plan.host import Host
from builder.spec import json_schema, load_pipeline

REPOSITORY = Path(__file__).parents[3]
DEMO = str(REPOSITORY / "pipelines" / "smollm2.yaml")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, call_builder: Any, tmp_path: Path) -> Any:
    """run("init", "demo") -> exit code, stdout, stderr; in an empty folder, as wide as a log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TANDEM_DEBUG", "0")
    return call_builder


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `plan` passed to make_plan; the checkpoint is a configuration made by hand."""
    from builder.plan import make
    from tests.unit.plan.conftest import SMOLLM2

    calls: list[Any] = []
    host = Host(memory=16 << 30, cores=2, instruction_sets=("generic",))
    monkeypatch.setattr(make, "open_checkpoint", lambda ref, base: SimpleNamespace(config=SMOLLM2))
    monkeypatch.setattr(make, "open_tokenizer", lambda ref, base: SimpleNamespace(fingerprint="same"))
    original = make.make_plan

    def make_plan(loaded: Any, *, measured: Any = None) -> Any:
        calls.append(measured)
        return original(loaded, host=host, measured=measured)

    monkeypatch.setattr(make, "make_plan", make_plan)
    return calls


def test_init_writes_a_pipeline_that_loads_and_says_what_is_next(run: Any, tmp_path: Path) -> None:
    code, out, err = run("init", "search", "--owner", "search-team@example.com")
    assert (code, out) == (0, "")
    assert "builder plan pipelines/search.yaml" in err
    metadata = load_pipeline(tmp_path / "pipelines" / "search.yaml").spec.metadata
    assert (metadata.name, metadata.owner) == ("search", "search-team@example.com")
    assert [path.name for path in (tmp_path / "pipelines").iterdir()] == ["search.yaml"]  # nothing beside it is left


def test_init_replaces_a_file_only_with_force(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    code, _, err = run("init", "mine", "-o", "mine.yaml")
    assert (code, path.read_text()) == (2, "mine")
    assert "already there" in err and "--force" in err
    assert run("init", "mine", "-o", "mine.yaml", "--force")[0] == 0
    assert load_pipeline(path).spec.metadata.name == "mine"


def test_init_refuses_a_bad_name_and_a_place_it_cannot_write(run: Any, tmp_path: Path) -> None:
    assert "'Bad Name' cannot be the name" in run("init", "Bad Name")[2]
    (tmp_path / "file").touch()
    code, _, err = run("init", "demo", "-o", "file/demo.yaml")
    assert code == 2
    assert err.startswith("Error: file/demo.yaml: cannot be written: ")


def test_schema_prints_the_schema_and_nothing_else(run: Any) -> None:
    code, out, err = run("schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == json_schema()


def test_plan_shows_checks_and_memory(run: Any, planned: list[Any]) -> None:
    code, out, _ = run("plan", DEMO)
    assert code == 0
    for words in ("tokenizer-match", "kv cache", "134,479,872 weights", "Break-even acceptance"):
        assert words in out
    assert planned == [None]


def test_plan_prints_one_json_document_and_exits_1_when_a_check_fails(run: Any, planned: list[Any], tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(Path(DEMO).read_text().replace("backend: torch_aot", "threads: 1000"))
    code, out, err = run("plan", str(bad), "--json")
    report = json.loads(out)
    assert (code, err, report["ok"]) == (1, "", False)
    assert [finding["id"] for finding in report["findings"] if not finding["ok"]] == ["threads-within-cores"]


def test_plan_predicts_from_measured_milliseconds(run: Any, planned: list[Any]) -> None:
    numbers = ("--acceptance", "0.8", "--plain-ms", "30", "--draft-ms", "1.5", "--verify-ms", "35")
    code, out, _ = run("plan", DEMO, *numbers)
    assert code == 0
    assert "3.36 tokens a round of 41.0 ms, 12.2 ms a token, 2.46x" in out
    assert planned[0].times == StepTimes(0.030, 0.0015, 0.035)
    assert "all four measured numbers" in run("plan", DEMO, *numbers[:4])[2]


def test_doctor_exits_1_when_something_is_missing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "examine", lambda serving, engine=None: [Finding("compiler", False, f"none for {serving.http_port}", "Install [g++]")]
    )
    code, out, _ = run("doctor", DEMO)
    assert code == 1
    assert "none for 8000. Install [g++]." in out  # brackets are text, not markup
    code, out, err = run("doctor", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["findings"][0]["id"] == "compiler"


@pytest.mark.parametrize(("error", "code"), [(WeightsError("truncated", where="a.gguf"), 2), (CheckError("no"), 1)])
def test_an_error_is_one_paragraph_and_its_exit_code(run: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    fail(monkeypatch, error)
    exit_code, out, err = run("plan", DEMO)
    assert (exit_code, out, err) == (code, "", f"Error: {error}\n")


def test_a_broken_pipeline_is_reported_with_its_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("metadata: {name: a, owner: b}\ntarget: {weights: w}\nengin: {}\n")
    code, _, err = run("plan", "p.yaml")
    assert code == 2
    assert err.startswith("Error: p.yaml:3: unknown key `engin` (did you mean `engine`?)")


def test_an_unexpected_error_shows_its_traceback_only_when_debugging(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, ZeroDivisionError("division by zero"))
    code, _, err = run("plan", DEMO)
    assert code == 2
    assert "ZeroDivisionError" in err and "TANDEM_DEBUG=1" in err and "Traceback" not in err
    with pytest.raises(ZeroDivisionError):
        run("--debug", "plan", DEMO)


def test_a_full_disk_is_reported_in_the_system_s_words(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, OSError(28, "No space left on device", "model.bin"))
    assert run("plan", DEMO)[2].startswith("Error: model.bin: No space left on device.")


def test_wrong_use_exits_2_and_guesses_the_command(run: Any) -> None:
    code, _, err = run("pln")
    assert code == 2
    assert "Did you mean 'plan'" in err
    assert run("plan")[0] == 2


def test_every_command_shows_an_example_in_its_help(run: Any) -> None:
    for command in main.app.registered_commands:
        code, out, _ = run(str(command.name), "--help")
        assert code == 0
        assert f"Example: builder {command.name}" in out, command.name


def test_help_schema_and_init_do_not_import_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from builder.cli.main import main; sys.argv[0] = 'builder'\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    for arguments in (["--help"], ["schema"], ["init", "demo"], ["plan", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


def test_ctrl_c_ends_with_one_line_and_130(tmp_path: Path) -> None:
    program = (
        "import sys, time; from builder.cli import main, plan\n"
        "def slow(path): print('started', flush=True); time.sleep(60)\n"
        "plan.load_pipeline = slow; sys.argv = ['builder', 'plan', 'p.yaml']; main.main()"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None and child.stdout.readline() == "started\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err.strip()) == (130, "Interrupted.")


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(path: Path) -> None:
        raise error

    monkeypatch.setattr(plan, "load_pipeline", load)
