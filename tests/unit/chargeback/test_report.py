"""Reports: sums, prices, FOCUS columns, and what does not add up."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from builder.chargeback.focus import COLUMNS, to_focus
from builder.chargeback.ledger import Ledger
from builder.chargeback.reconcile import read_client_counts, with_clients, with_counters
from builder.chargeback.report import Report, make_report
from builder.errors import LedgerError
from builder.spec.pipeline import PipelineSpec
from builder.telemetry.scrape import parse

PRICES = {"input": 0.1, "cached_input": 0.02, "output": 0.4}


@pytest.fixture
def spec() -> PipelineSpec:
    sections: dict[str, Any] = {"metadata": {"name": "p", "owner": "team@example.com"}, "target": {"weights": "w"}}
    return PipelineSpec.model_validate(sections | {"chargeback": {"currency": "EUR", "per_million_tokens": PRICES, "tenants": ["search"]}})


@pytest.fixture
def folder(tmp_path: Path, record: Any) -> Path:
    """Two days, two tenants; one server that ended and one that runs."""
    ended = Ledger(tmp_path)
    ended.add(record("a", time="2026-03-04T23:59:59.999+00:00"))
    ended.add(record("b"))
    ended.close()
    running = Ledger(tmp_path)
    running.add(record("c", tenant="other", optimisation="plain", drafted=0, rejected=0, passes_avoided=0, target_passes=20))
    running.add(record("d", finish_reason="cancelled"))
    running.close()
    return tmp_path


def report(spec: PipelineSpec, folder: Path, first: str = "2026-03-01", last: str = "2026-03-31") -> Report:
    return make_report(spec, folder, first, last)


def test_usage_is_summed_by_day_tenant_and_optimisation(spec: PipelineSpec, folder: Path) -> None:
    rows = report(spec, folder).to_json()["rows"]
    assert [(row["day"], row["tenant"], row["optimisation"], row["requests"], row["cancelled"]) for row in rows] == [
        ("2026-03-04", "search", "speculative", 1, 0),
        ("2026-03-05", "other", "plain", 1, 0),
        ("2026-03-05", "search", "speculative", 2, 1),
    ]
    assert (rows[2]["input"], rows[2]["cached_input"], rows[2]["output"], rows[2]["draft_rejected"]) == (20, 10, 40, 8)


def test_costs_are_exact_at_the_specs_prices(spec: PipelineSpec, folder: Path) -> None:
    figures = report(spec, folder).to_json()
    assert figures["total"]["cost"]["output"] == "0.000032"  # 80 tokens at 0.40 a million
    by_tenant = {row["tenant"]: Decimal(row["cost"]["total"]) for row in figures["by_tenant"]}
    assert by_tenant == {"search": Decimal("0.0000273"), "other": Decimal("0.0000091")}
    assert Decimal(figures["total"]["cost"]["total"]) == sum(by_tenant.values())


def test_rejected_drafts_are_the_operators_until_they_have_a_price(spec: PipelineSpec, folder: Path) -> None:
    assert report(spec, folder).to_json()["rejected_drafts_paid_by"] == "operator"
    priced = spec.model_dump(mode="json")
    priced["chargeback"]["per_million_tokens"]["draft_rejected"] = 0.5
    figures = report(PipelineSpec.model_validate(priced), folder).to_json()
    assert figures["rejected_drafts_paid_by"] == "tenant"
    assert {row["tenant"]: row["cost"]["draft_rejected"] for row in figures["by_tenant"]} == {"search": "0.000006", "other": "0"}


def test_the_saving_is_the_share_of_passes_that_plain_decoding_would_have_made(spec: PipelineSpec, folder: Path) -> None:
    by = {row["optimisation"]: row for row in report(spec, folder).to_json()["by_optimisation"]}
    assert (by["speculative"]["target_passes_avoided"], by["speculative"]["passes_avoided_share"]) == (36, 0.6)
    assert by["plain"]["passes_avoided_share"] == 0.0


def test_days_outside_the_period_do_not_count(spec: PipelineSpec, folder: Path) -> None:
    assert report(spec, folder, "2026-03-05", "2026-03-05").to_json()["total"]["requests"] == 3
    assert report(spec, folder, "2026-03-06").to_json()["total"]["requests"] == 0


def test_the_csv_has_a_line_a_row_and_the_same_sums(spec: PipelineSpec, folder: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(report(spec, folder).to_csv())))
    assert [line["tenant"] for line in lines] == ["search", "other", "search"]
    assert sum(Decimal(line["cost_total"]) for line in lines) == Decimal("0.0000364")
    assert {line["currency"] for line in lines} == {"EUR"}


def test_an_empty_period_is_an_empty_report(spec: PipelineSpec, tmp_path: Path) -> None:
    made = report(spec, tmp_path)
    assert made.to_json()["total"]["cost"]["total"] == "0"
    assert to_focus(made).splitlines() == [",".join(COLUMNS)]
    assert len(made.to_csv().splitlines()) == 1


def test_without_a_ledger_there_is_no_report(spec: PipelineSpec, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no usage ledger"):
        report(spec, tmp_path / "nowhere")


def test_the_same_records_make_the_same_report_in_any_order_of_files(spec: PipelineSpec, folder: Path) -> None:
    assert report(spec, folder).to_json() == report(spec, folder).to_json()


def test_focus_rows_have_every_required_column_and_add_up(spec: PipelineSpec, folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(to_focus(report(spec, folder)))))
    assert list(rows[0]) == list(COLUMNS)
    never_null = ("BilledCost", "BillingAccountId", "BillingCurrency", "BillingPeriodStart", "ChargeCategory", "ChargePeriodEnd")
    never_null += ("ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "ProviderName", "PublisherName")
    never_null += ("ServiceCategory", "ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "PricingQuantity", "PricingUnit")
    assert all(row[column] for row in rows for column in never_null)
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("0.0000364")
    for row in rows:
        assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(row["ListCost"]) == Decimal(row["BilledCost"])
        assert Decimal(row["PricingQuantity"]) * 1_000_000 == Decimal(row["ConsumedQuantity"])
    first = rows[0]
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == ("2026-03-04T00:00:00Z", "2026-03-05T00:00:00Z")
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z")
    assert json.loads(first["Tags"]) == {"optimisation": "speculative", "token_type": "input"}
    assert (first["ChargeCategory"], first["ChargeFrequency"], first["ServiceCategory"]) == (
        "Usage",
        "Usage-Based",
        "AI and Machine Learning",
    )


def damage(folder: Path, old: bytes, new: bytes) -> None:
    path = sorted(folder.glob("2026-03-05-*"))[0]
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_a_line_that_was_taken_out_is_missed(spec: PipelineSpec, tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path)
    for name in "abc":
        ledger.add(record(name))
    ledger.close()
    damage(tmp_path, record("b").line(2) + b"\n", b"")
    found = report(spec, tmp_path).integrity
    assert (found.missing_records, found.whole) == (1, False)


def test_a_line_that_was_repeated_is_noticed(spec: PipelineSpec, tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(record("a"))
    ledger.close()
    damage(tmp_path, record("a").line(1), record("a").line(1) + b"\n" + record("a").line(1))
    assert report(spec, tmp_path).integrity.repeated_records == 1


def test_a_damaged_line_is_counted_and_missed(spec: PipelineSpec, tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path)
    for name in "abc":
        ledger.add(record(name))
    ledger.close()
    damage(tmp_path, b'{"number":2', b'{"num\0er":2')
    found = report(spec, tmp_path).integrity
    assert (found.damaged_lines, found.missing_records) == (1, 1)


def test_a_segment_that_was_taken_away_is_missed(spec: PipelineSpec, tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path, segment_bytes=1)
    for name in "abc":
        ledger.add(record(name))
    ledger.close()
    next(tmp_path.glob("*-000002.jsonl")).unlink()
    assert report(spec, tmp_path).integrity.missing_segments == (f"{ledger.writer}-000002",)


def test_the_line_a_writer_is_just_writing_does_not_spoil_the_report(spec: PipelineSpec, tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(record("a"))
    with next(tmp_path.glob("*.part")).open("ab") as file:
        file.write(b'\n{"number":2,"id"')
    made = report(spec, tmp_path)
    assert (made.integrity.records, made.integrity.damaged_lines, made.integrity.whole) == (1, 1, True)


COUNTERS = """\
# TYPE tandem_ledger_writer gauge
tandem_ledger_writer{{model="p",version="3",writer="{writer}"}} 1
# TYPE tandem_finished_requests counter
tandem_finished_requests{{model="p",version="3",tenant="search",optimisation="speculative",finish_reason="stop"}} 1
tandem_finished_requests{{model="p",version="3",tenant="search",optimisation="speculative",finish_reason="length"}} 1
tandem_finished_requests{{model="q",version="3",tenant="search",optimisation="speculative",finish_reason="stop"}} 99
# TYPE tandem_tokens counter
tandem_tokens{{model="p",version="3",tenant="search",token_type="input",optimisation="speculative"}} 20
tandem_tokens{{model="p",version="3",tenant="search",token_type="cached_input",optimisation="speculative"}} 10
tandem_tokens{{model="p",version="3",tenant="search",token_type="output",optimisation="speculative"}} {output}
tandem_tokens{{model="p",version="3",tenant="search",token_type="draft_rejected",optimisation="speculative"}} 8
"""


def running(folder: Path, record: Any) -> Ledger:
    earlier, now = Ledger(folder), Ledger(folder)
    earlier.add(record("of an earlier process"))
    now.add(record("a"))
    now.add(record("b"))
    return now


def test_counters_agree_with_the_records_of_their_own_process(tmp_path: Path, record: Any) -> None:
    scraped = parse(COUNTERS.format(writer=running(tmp_path, record).writer, output=40))
    check = with_counters(tmp_path, scraped, "p")
    assert check.agrees
    assert check.compared == 5


def test_a_counter_that_differs_is_named_with_both_counts(tmp_path: Path, record: Any) -> None:
    scraped = parse(COUNTERS.format(writer=running(tmp_path, record).writer, output=41))
    check = with_counters(tmp_path, scraped, "p").to_json()
    assert not check["agrees"]
    assert check["differences"] == [{"what": "tokens search output speculative", "ledger": 40, "counters": 41}]


def client_file(folder: Path, **tenants: dict[str, int]) -> Path:
    path = folder / "client.json"
    path.write_text(json.dumps({"since": "2026-03-05T10:30:00+01:00", "until": "2026-03-05T10:00:00Z", "tenants": tenants}))
    return path


def test_clients_are_compared_with_the_requests_of_their_time(tmp_path: Path, record: Any) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(record("before", time="2026-03-05T09:29:59.000+00:00"))
    ledger.add(record("a"))
    seen = {"requests": 1, "input": 10, "cached_input": 5, "output": 20}
    assert with_clients(tmp_path, read_client_counts(client_file(tmp_path, search=seen))).agrees
    check = with_clients(tmp_path, read_client_counts(client_file(tmp_path, search=seen | {"output": 21}, other=seen)))
    assert {(d.what, d.ledger, d.other) for d in check.differences if "search" in d.what} == {("output search", 20, 21)}
    assert len(check.differences) == 5


@pytest.mark.parametrize("text", ["{", '{"since": 3}', '{"since": "2026-03-05T10:00:00", "until": "2026-03-05T10:00:00Z", "tenants": {}}'])
def test_client_counts_of_another_shape_are_refused_with_an_example(tmp_path: Path, text: str) -> None:
    (tmp_path / "client.json").write_text(text)
    with pytest.raises(LedgerError, match="Its shape is"):
        read_client_counts(tmp_path / "client.json")
