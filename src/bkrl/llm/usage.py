"""What the replies of one session took: requests, tokens, dollars."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bkrl.llm.budget import Budget
from bkrl.llm.prices import Price
from bkrl.llm.protocol import Exchange, Reply


class Usage:
    """Totals of one session. Tokens and dollars count each stored reply once, however often it is read, whenever it was
    bought; `unpriced` counts the replies whose cost is not known.
    """

    def __init__(self, price: Price | None = None) -> None:
        self.price = price
        self.keys: set[str] = set()
        """Of the replies that were counted."""
        self.asked = self.cached = self.sent = self.failed = 0
        self.prompt_tokens = self.completion_tokens = self.reasoning_tokens = self.cached_prompt_tokens = 0
        self.cost_usd = 0.0
        self.unpriced = self.possibly_billed = self.unreported = 0
        self.reasons: Counter[str] = Counter()

    def count(self, key: str, reply: Reply) -> None:
        """Add a reply; a second time it changes nothing."""
        if key in self.keys:
            return
        self.keys.add(key)
        self.unreported += reply.prompt_tokens is None and reply.completion_tokens is None
        self.prompt_tokens += reply.prompt_tokens or 0
        self.completion_tokens += reply.completion_tokens or 0
        self.reasoning_tokens += reply.reasoning_tokens or 0
        self.cached_prompt_tokens += reply.cached_tokens or 0
        cost = self.cost(reply)
        self.cost_usd += cost or 0.0
        self.unpriced += cost is None

    def count_failure(self, exchange: Exchange) -> None:
        """Add an exchange that brought no answer."""
        self.failed += 1
        self.reasons[exchange.reason or exchange.status] += 1

    def cost(self, reply: Reply) -> float | None:
        """Dollars paid for a reply; None where that is not known."""
        return None if self.price is None else self.price.of(reply)

    def as_facts(self) -> dict[str, Any]:
        """For the manifest: requests and tokens."""
        return {
            "requests": self.asked,
            "cached": self.cached,
            "sent": self.sent,
            "failed": self.failed,
            "failed_reasons": dict(sorted(self.reasons.items())),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "replies_without_usage": self.unreported,
            "lost_replies_possibly_billed": self.possibly_billed,
        }

    def cost_facts(self, budget: Budget) -> dict[str, Any]:
        """For the manifest: what the replies cost, and what this run has spent; null where a price is not known."""
        if self.price is None:
            return {"price": "unknown", "cost_usd": None, "replies_without_cost": self.unpriced}
        return {
            "price": self.price.source,
            "cost_usd": round(self.cost_usd, 9),
            "replies_without_cost": self.unpriced,
            "spent_usd": round(budget.paid, 9),
            "possibly_spent_usd": round(budget.doubtful, 9),
        }

    def cost_in_words(self, budget: Budget) -> str:
        """What the replies cost, and what of it this run has paid."""
        if self.price is None:
            return "their price is not known (--prices FILE gives it)"
        unknown = f", {self.unpriced:,} more of unknown cost" if self.unpriced else ""
        doubtful = f", up to ${budget.doubtful:,.4f} more if lost replies were billed" if budget.doubtful else ""
        return f"cost ${self.cost_usd:,.4f}{unknown}, ${budget.paid:,.4f} of it paid by this run{doubtful}"
