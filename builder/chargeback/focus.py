"""The report as FOCUS 1.2, the FinOps Open Cost and Usage Specification: CSV that cost tools import.

A row is one tenant, UTC day, optimisation and token type. The tenant is the sub account, the pipeline the resource, the
token type the SKU; the tags say how the tokens were made. Prices are the operator's own, so billed, list, contracted and
effective cost are equal.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

from builder.chargeback.prices import PRICED_QUANTITY, TOKEN_TYPES, plain
from builder.chargeback.report import Report, Row

# In the specification's order, which is that of the alphabet. Those that do not apply here stay empty (null).
COLUMNS = (
    *("AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd"),
    *("ChargePeriodStart", "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountStatus"),
    *("CommitmentDiscountType", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost"),
    *("InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory", "PricingCurrency"),
    *("PricingCurrencyContractedUnitPrice", "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType"),
    *("ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId"),
    *("SubAccountName", "Tags"),
)


def to_focus(report: Report) -> str:
    """CSV with all columns of FOCUS 1.2 that apply; token types of which nothing was used have no row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        writer.writerows(_charge(report, row, kind) for kind in TOKEN_TYPES if getattr(row.usage, kind))
    return text.getvalue()


def _charge(report: Report, row: Row, kind: str) -> dict[str, str]:
    tokens, price, pipeline = getattr(row.usage, kind), report.prices.of[kind], report.pipeline
    cost, unit_price = plain(report.prices.cost(row.usage, kind)), plain(price)
    day = date.fromisoformat(row.day)
    month = day.replace(day=1)
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost"), cost),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), unit_price),
        **dict.fromkeys(("PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice"), unit_price),
        **dict.fromkeys(("BillingCurrency", "PricingCurrency"), report.currency),
        **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName", "BillingAccountName"), report.owner),
        **dict.fromkeys(("ResourceId", "ResourceName", "BillingAccountId"), pipeline),
        **dict.fromkeys(("SubAccountId", "SubAccountName"), row.tenant),
        **dict(zip(("BillingPeriodStart", "BillingPeriodEnd"), _instants(month, (month + timedelta(days=31)).replace(day=1)), strict=True)),
        **dict(zip(("ChargePeriodStart", "ChargePeriodEnd"), _instants(day, day + timedelta(days=1)), strict=True)),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{kind} tokens of {pipeline}, {row.optimisation} decoding",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": f"{tokens}.0",  # a decimal by definition; readers that guess types take a whole number for an integer
        "ConsumedUnit": "Tokens",
        "PricingCategory": "Standard",
        "PricingQuantity": plain(report.prices.million(tokens)),
        "PricingUnit": f"{PRICED_QUANTITY} Tokens",
        "ResourceType": "LLM pipeline",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "LLM inference",
        "ServiceSubcategory": "Generative AI",
        "SkuId": f"{pipeline}/{kind}",
        "SkuMeter": f"{kind} tokens",
        "SkuPriceDetails": json.dumps({"x_token_type": kind}),
        "SkuPriceId": f"{pipeline}/{kind}/{unit_price}-{report.currency}",
        "Tags": json.dumps({"optimisation": row.optimisation, "token_type": kind}),
    }


def _instants(*days: date) -> Iterator[str]:
    for day in days:
        yield datetime.combine(day, time()).isoformat() + "Z"
