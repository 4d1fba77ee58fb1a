"""A session that asks beside training: for methods whose annotator is named by a setting."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from bkrl.core.config import AskConfig
from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.llm import BACKENDS, open_backend
from bkrl.llm.budget import Budget
from bkrl.llm.policy import AskPolicy
from bkrl.llm.prices import find_price, unknown_price
from bkrl.llm.protocol import Connection
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store


def check_name(name: str, others: Sequence[str] = (), what: str = "annotator") -> None:
    """UsageError where no annotator has the name; the arguments are those of `open_session`."""
    known = (*others, *BACKENDS.names())
    if name.partition(":")[0] not in known:
        raise UsageError(f"There is no {what} '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}.")


def open_session(
    name: str, settings: AskConfig, stack: ExitStack, others: Sequence[str] = (), what: str = "annotator"
) -> AskSession:
    """A session with the annotator of this name, which `stack` closes. For a dry run it writes nothing.

    Raises:
        UsageError: no annotator has the name, or a cost is bounded and not known. `others`: names that would do, too;
            `what`: what the name is of.
        InputError: a key, model or file is not there.
    """
    check_name(name, others, what)
    asking = not settings.dry_run
    backend = open_backend(name, Connection(settings.cache, asking=asking))
    price = find_price(backend.identity, settings.prices)
    if backend.identity is not None and price is None and settings.max_cost:
        raise unknown_price(backend.identity)
    store = stack.enter_context(Store(settings.cache)) if asking and backend.identity is not None else None
    budget = Budget(None, settings.max_requests or None, settings.max_cost or None)
    stack.callback(budget.close)
    policy = AskPolicy.of(backend.identity, settings.concurrency)
    return stack.enter_context(AskSession(backend, store, policy, budget=budget, price=price))
