"""The FinOps Foundation's own validator over a FOCUS file of a real server's ledger; skipped where `make focus` was not run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from builder.serve.triton import Triton
from tests.integration import talk
from tests.integration.conftest import tiny_spec

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TANDEM_FOCUS_PYTHON", ROOT / ".venv-focus/bin/python"))
BUILDER = [sys.executable, "-c", "from builder.cli.main import main; main()"]
# What a bill of one's own pipelines has; of commitments, capacity reservations, virtual currencies and kinds of accounts it has none
HERE = [f"{name}_SUPPORTED" for name in ("ACCOUNT_NAMING", "SUB_ACCOUNT", "USAGE_MEASUREMENT", "UNIT_PRICING", "PUBLIC_PRICE_LIST")]
HERE += [f"{name}_SUPPORTED" for name in ("NEGOTIATED_PRICING", "MULTIPLE_PRICING_CATEGORIES", "RESOURCE_TYPE_ASSIGNMENT", "TAGGING")]
HERE += [f"{name}_SUPPORTED" for name in ("PRICING_BILLING_CURRENCY_DIFFERENCES", "REGION", "AVAILABILITY_ZONE")]
# InvoiceId must be null without an invoice (004) and must not be with one (005): the validator runs both, one of them fails in every file
EITHER_OR = "InvoiceId-C-005-C"


def validate(file: Path) -> tuple[int, set[str]]:
    """How many rules passed, and which failed."""
    located = "import focus_validator, pathlib; print(pathlib.Path(focus_validator.__file__).parents[1])"
    folder = subprocess.run([str(PYTHON), "-c", located], capture_output=True, text=True, check=True).stdout.strip()
    command = [str(PYTHON.with_name("focus-validator")), "--data-file", str(file), "--validate-version", "1.2", "--block-download"]
    command += ["--applicability-criteria", ",".join(HERE), "--output-type", "console"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # its list of currencies has a relative path
    return int(re.findall(r"Pass: (\d+)", done.stdout)[0]), set(re.findall(r"^❌ (\S+): FAIL", done.stdout, flags=re.MULTILINE))


def test_the_validator_accepts_the_focus_file_of_a_real_ledger(tiny_server: Triton, tiny_weights: Path, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("focus-validator is not installed: run `make focus`")
    for tenant in ("search", "stranger"):
        talk.generate(tiny_server, text_input="the cat sat", max_tokens=9, tenant=tenant)
    talk.generate(tiny_server, text_input="the cat sat", max_tokens=9, speculation="off")
    chargeback = {"currency": "EUR", "per_million_tokens": {"input": 0.1, "cached_input": 0.02, "output": 0.4}, "tenants": ["search"]}
    pipeline, file = tmp_path / "tiny.yaml", tmp_path / "focus.csv"
    pipeline.write_text(yaml.safe_dump(tiny_spec("tiny", tiny_weights, serving={}, chargeback=chargeback).model_dump(mode="json")))
    command = [*BUILDER, "chargeback", "report", str(pipeline), "--repository", str(tiny_server.repository), "--format", "focus"]
    file.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    passed, failed = validate(file)
    assert failed == {EITHER_OR}
    assert passed > 250

    file.write_text(file.read_text().replace("Usage-Based", "Sometimes"))
    assert {rule.split("-")[0] for rule in validate(file)[1] - {EITHER_OR}} == {"ChargeFrequency"}
