"""What the replies of one session took: requests, tokens, dollars."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.llm.budget import Budget
from bkrl.llm.prices import Price
from bkrl.llm.protocol import Exchange, Reply


class Usage:
    """Totals of one session. Tokens and dollars count each stored reply once, however often it is read, whenever it was
    bought; `unpriced` counts the replies whose cost is not known. What was sent is the budget's to say, which counts
    over all processes that work in a run; the rest is part of a checkpoint (`state`) where a session asks beside
    training.
    """

    def __init__(self, budget: Budget, price: Price | None = None) -> None:
        self.budget, self.price = budget, price
        self.keys: set[str] = set()
        """Of the replies that were counted."""
        self.asked = 0
        self.prompt_tokens = self.completion_tokens = self.reasoning_tokens = self.cached_prompt_tokens = 0
        self.cost_usd = 0.0
        self.unpriced = self.unreported = 0
        self.reasons: Counter[str] = Counter()
        """Why requests brought no answer."""

    @property
    def failed(self) -> int:
        """Requests that brought no answer."""
        return self.reasons.total()

    @property
    def cached(self) -> int:
        """Replies that this run did not ask for."""
        return sum(not self.budget.bought(key) for key in list(self.keys))

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

    def count_request(self, exchange: Exchange) -> None:
        """Add a request, and that it brought no answer where it did not."""
        self.asked += 1
        if exchange.status != "ok":
            self.reasons[exchange.reason or exchange.status] += 1

    def cost(self, reply: Reply) -> float | None:
        """Dollars for a reply, by the price list of this session; None where that is not known."""
        return None if self.price is None else self.price.of(reply)

    def as_facts(self) -> dict[str, Any]:
        """For the manifest: requests and tokens."""
        return {
            "requests": self.asked,
            "cached": self.cached,
            "sent": self.budget.sent,
            "failed": self.failed,
            "failed_reasons": dict(sorted(self.reasons.items())),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "replies_without_usage": self.unreported,
            "lost_replies_possibly_billed": self.budget.lost,
        }

    def state(self, again: Sequence[Exchange] = ()) -> dict[str, NDArray[Any]]:
        """What was counted, as arrays; `again`: requests that will be made, and counted, once more after `restore`."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int | float)}
        reasons = self.reasons - Counter(one.reason or one.status for one in again if one.status != "ok")
        text = json.dumps({**counts, "asked": self.asked - len(again), "reasons": reasons})
        keys = np.frombuffer(bytes.fromhex("".join(sorted(self.keys))), np.uint8)
        return {"usage": np.frombuffer(text.encode(), np.uint8), "usage.keys": keys}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        counts = json.loads(bytes(state["usage"]))
        self.reasons = Counter(counts.pop("reasons"))
        vars(self).update(counts)
        keys = bytes(state["usage.keys"])
        self.keys = {keys[start : start + 32].hex() for start in range(0, len(keys), 32)}

    def cost_facts(self) -> dict[str, Any]:
        """For the manifest: what the replies cost, and what this run has spent; null where a price is not known."""
        if self.price is None:
            return {"price": "unknown", "cost_usd": None, "replies_without_cost": self.unpriced}
        return {
            "price": self.price.source,
            "cost_usd": round(self.cost_usd, 9),
            "replies_without_cost": self.unpriced,
            "spent_usd": round(self.budget.paid, 9),
            "possibly_spent_usd": round(self.budget.doubtful, 9),
        }

    def cost_in_words(self) -> str:
        """What the replies cost, and what of it this run has paid."""
        if self.price is None:
            return "their price is not known (--prices FILE gives it)"
        unknown = f", {self.unpriced:,} more of unknown cost" if self.unpriced else ""
        lost = self.budget.doubtful
        doubtful = f", up to ${lost:,.4f} more if lost replies were billed" if lost else ""
        return f"cost ${self.cost_usd:,.4f}{unknown}, ${self.budget.paid:,.4f} of it paid by this run{doubtful}"
