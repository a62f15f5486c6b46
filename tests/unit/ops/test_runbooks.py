"""Runbooks and alerts name each other; every page has the same parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from builder.telemetry.catalogue import CATALOGUE
from builder.telemetry.exporter_catalogue import EXPORTER_CATALOGUE

OPS = Path(__file__).parents[3] / "ops"
RULES = [rule for group in yaml.safe_load((OPS / "prometheus/alerts.yml").read_text())["groups"] for rule in group["rules"]]
PAGES = sorted(path for path in (OPS / "runbooks").glob("*.md") if path.name != "README.md")
KNOWN = {metric.name for metric in (*CATALOGUE, *EXPORTER_CATALOGUE)}


def alerts_of(page: str) -> set[str]:
    return {rule["alert"] for rule in RULES if rule["annotations"]["runbook"] == f"ops/runbooks/{page}"}


def test_there_is_a_page_for_every_alert_and_an_alert_for_every_page() -> None:
    linked = {rule["annotations"]["runbook"].rpartition("/")[2] for rule in RULES}
    assert {page.name for page in PAGES} == linked
    assert len(PAGES) == 9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_when_it_fires_how_to_confirm_what_to_do_when_to_escalate_and_whose_it_is(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == ["Confirm", "Do", "Escalate", "Owner"]
    fires = text[text.index("**Fires:**") : text.index("## Confirm")]
    assert set(re.findall(r"Tandem[A-Z]\w+", fires)) == alerts_of(page.name)
    assert set(re.findall(r"^ *```(.+)$", text, re.M)) <= {"sh", "sh long", "sh gpu"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_and_pages_that_are_named_are_there(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"tandem_[a-z0-9_]+(?![a-z0-9_(])", text):
        assert any(known.startswith(name) for known in KNOWN), name
    for target in re.findall(r"\]\(([\w-]+\.md)\)", text):
        assert (page.parent / target).is_file(), target
    for target in re.findall(r"docs/[\w-]+\.md", text):
        assert (OPS.parent / target).is_file(), target


def test_the_list_of_pages_names_the_alerts_of_each() -> None:
    for line in (OPS / "runbooks/README.md").read_text().splitlines():
        if found := re.match(r"\| \[.*\]\((.*)\) \| (.*) \|", line):
            assert set(found[2].split(", ")) == alerts_of(found[1])
