"""What usage costs at the spec's prices. Exact decimals: money is never a float."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from builder.chargeback.usage import Usage
from builder.spec.chargeback import TokenPrices

TOKEN_TYPES = ("input", "cached_input", "output", "draft_rejected")
PRICED_QUANTITY = 1_000_000  # tokens


@dataclass(frozen=True)
class Prices:
    """Price of a million tokens by token type, as written in the spec."""

    of: dict[str, Decimal]

    @classmethod
    def from_spec(cls, prices: TokenPrices) -> Prices:
        return cls({kind: Decimal(str(getattr(prices, kind))) for kind in TOKEN_TYPES})

    @staticmethod
    def million(tokens: int) -> Decimal:
        """The quantity that is priced."""
        return Decimal(tokens) / PRICED_QUANTITY

    def cost(self, usage: Usage, kind: str) -> Decimal:
        return self.of[kind] * self.million(getattr(usage, kind))

    def total(self, usage: Usage) -> Decimal:
        return sum((self.cost(usage, kind) for kind in TOKEN_TYPES), Decimal(0))

    @property
    def payer_of_rejected_drafts(self) -> str:
        """Who pays for drafted tokens that the target refused."""
        return "tenant" if self.of["draft_rejected"] else "operator"


def plain(amount: Decimal) -> str:
    """Without an exponent and without zeros at the end: 0.00012."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
