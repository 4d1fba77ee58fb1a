"""A label run in batches: submit, come back, collect. The same questions as at once, and the same tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from bkrl.core.errors import RunFailed
from bkrl.core.reporter import Reporter
from bkrl.llm.batches import Batches
from bkrl.llm.kept import KeptAnswers
from bkrl.llm.openai import OpenAIBackend
from bkrl.llm.session import AskSession

T = TypeVar("T")

Step = Literal["submit", "status", "collect"]


def advance(
    step: Step, batches: Batches, live: AskSession, work: Callable[[AskSession], T], reporter: Reporter
) -> tuple[AskSession, T] | None:
    """Take one step; the finished work and who answered it once every answer is here, else None.

    Args:
        live: asks at once: one request of an endpoint that was never asked, before thousands are submitted blindly.
        work: the whole label run with whatever answers its asker has.
    """
    if step == "status":
        batches.status()
        return None
    asker, _ = _from_store(batches, live, work)
    if step == "submit":
        missing = asker.missing
        backend = live.backend
        out = batches.out()
        first = next((request for key, request in missing.items() if key not in out), None)
        if first is not None and isinstance(backend, OpenAIBackend) and not backend.capabilities.accepted:
            live.ask([first], "try one request")
            missing = _from_store(batches, live, work)[0].missing
        batches.submit(missing)
        return None
    outcome = batches.collect(asker.missing)
    if outcome.replies or outcome.faults:
        reporter.say(f"{outcome.replies:,} replies collected.")
    if outcome.faults:
        told = ", ".join(f"{count:,} {reason}" for reason, count in outcome.faults.most_common())
        reporter.warn(f"{outcome.faults.total():,} requests brought no reply ({told}).")
    if outcome.foreign:
        reporter.warn(
            f"{outcome.foreign:,} lines of the output belong to no request of this run; they were left alone."
        )
    asker, done = _from_store(batches, live, work)
    if not asker.missing:
        return asker, done
    out = batches.out()
    waiting = sum(key in out for key in asker.missing)
    if waiting:
        raise RunFailed(f"{waiting:,} requests are still out; collect again later (--batch status tells how they do).")
    raise RunFailed(
        f"{len(asker.missing):,} requests are still to be asked (failed ones, second questions about answers that "
        "could not be read, longer replies); --batch submit hands them in, or leave --batch out to ask them now."
    )


def _from_store(batches: Batches, live: AskSession, work: Callable[[AskSession], T]) -> tuple[KeptAnswers, T]:
    kept = KeptAnswers(live.backend, live.store, failures=batches.failures, budget=live.budget, price=live.price)
    with kept:
        return kept, work(kept)
