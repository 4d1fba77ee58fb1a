"""A model that answers by a function of the request, and a judge to tell segments apart."""

from __future__ import annotations

from collections.abc import Callable

from bkrl.data.dataset import Dataset
from bkrl.labelers.asking import Sampling
from bkrl.labelers.material import EnvCard
from bkrl.labelers.plan import Plan
from bkrl.llm.protocol import Reply, Request
from bkrl.llm.session import AskSession

CARD = EnvCard("Toy", "other", ("a", "b"))
Script = Callable[[Request], "str | Reply"]


class Scripted:
    """A backend whose answers are free and not stored; it keeps every request."""

    name, identity = "scripted", None

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        reply = self.script(request)
        return reply if isinstance(reply, Reply) else Reply(reply)

    def facts(self) -> dict[str, str]:
        return {}

    async def close(self) -> None:
        return None


def plan_of(dataset: Dataset, rounds: int, votes: int = 1, card: EnvCard = CARD) -> Plan:
    """Of programs."""
    return Plan("code", dataset, card, rounds, 5, "none", votes, Sampling(), seed=0)


def asker(script: Script) -> AskSession:
    return AskSession(Scripted(script))
