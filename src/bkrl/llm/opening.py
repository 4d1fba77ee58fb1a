"""Opening a session, with the limits, prices and patience that settings name."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bkrl.core.config import AskConfig
from bkrl.core.errors import UsageError
from bkrl.core.models import find
from bkrl.core.registry import did_you_mean
from bkrl.core.reporter import Reporter
from bkrl.llm import annotators, open_backend
from bkrl.llm.budget import Budget
from bkrl.llm.policy import AskPolicy
from bkrl.llm.prices import find_price, unknown_price
from bkrl.llm.protocol import Backend, Connection
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store


def check_name(name: str, others: Sequence[str] = (), what: str = "annotator") -> None:
    """UsageError where no annotator, or no model of the catalogue, has the name; arguments as of `open_session`."""
    known, (kind, _, model) = (*others, *annotators().names()), name.partition(":")
    if kind not in known:
        raise UsageError(f"There is no {what} '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}.")
    if kind == "local":
        find(model)


def open_session(
    name: str,
    settings: AskConfig,
    stack: ExitStack,
    others: Sequence[str] = (),
    what: str = "annotator",
    effort: str = "default",
    seed: int = 0,
) -> AskSession:
    """A session with the annotator of this name, which `stack` closes. For a dry run it writes nothing.

    Raises:
        UsageError: no annotator has the name, or a cost is bounded and not known. `others`: names that would do, too;
            `what`: what the name is of; `effort`, `seed`: see `Connection`.
        InputError: a key, model or file is not there.
    """
    check_name(name, others, what)
    asking = not settings.dry_run
    connection = Connection(settings.cache, asking=asking, api=settings.api, effort=effort, seed=seed)
    return opened(session_with(open_backend(name, connection), settings), settings.cache if asking else None, stack)


def session_with(backend: Backend, settings: AskConfig, reporter: Reporter | None = None, **pace: Any) -> AskSession:
    """A session with a backend, which `opened` opens; `pace`: more for `AskPolicy.of`. UsageError where a cost is
    bounded and not known.
    """
    price = find_price(backend.identity, settings.prices)
    if backend.identity is not None and price is None and settings.max_cost:
        raise unknown_price(backend.identity)
    policy = AskPolicy.of(backend.identity, settings.concurrency, **pace)
    budget = Budget(None, settings.max_requests or None, settings.max_cost or None)
    return AskSession(backend, None, policy, reporter, budget, price)


def opened(session: AskSession, cache: Path | None, stack: ExitStack) -> AskSession:
    """The session with the replies that a cache keeps, closed with `stack`; without a cache nothing is written."""
    if cache is not None and session.backend.identity is not None:
        session.store = stack.enter_context(Store(cache, session.reporter))
    stack.callback(session.budget.close)
    return stack.enter_context(session)
