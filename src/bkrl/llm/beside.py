"""A session that asks beside training: for methods whose annotator is named by a setting."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.llm import BACKENDS, open_backend
from bkrl.llm.budget import Budget
from bkrl.llm.policy import AskPolicy
from bkrl.llm.prices import find_price, unknown_price
from bkrl.llm.protocol import Connection
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store


def open_session(
    name: str,
    stack: ExitStack,
    cache: Path,
    max_requests: int = 0,
    max_cost: float = 0.0,
    others: Sequence[str] = (),
    what: str = "suggester",
    prices: Path | None = None,
    concurrency: int = 16,
    asking: bool = True,
) -> AskSession:
    """A session with the annotator of this name, which `stack` closes; 0: no limit. Without `asking` it writes nothing.

    Raises:
        UsageError: no annotator has the name, or a cost is bounded and not known. `others`: names that would do, too;
            `what`: what the name is of.
        InputError: a key, model or file is not there.
    """
    known = (*others, *BACKENDS.names())
    if name.partition(":")[0] not in known:
        raise UsageError(f"There is no {what} '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}.")
    backend = open_backend(name, Connection(cache, asking=asking))
    price = find_price(backend.identity, prices)
    if backend.identity is not None and price is None and max_cost:
        raise unknown_price(backend.identity)
    store = stack.enter_context(Store(cache)) if asking and backend.identity is not None else None
    budget = Budget(None, max_requests or None, max_cost or None)
    stack.callback(budget.close)
    policy = AskPolicy.of(backend.identity, concurrency)
    return stack.enter_context(AskSession(backend, store, policy, budget=budget, price=price))
