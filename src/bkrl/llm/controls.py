"""`random` and `equal`, which answer closed questions and know nothing, `words`, and `exact`, which knows the truth.

What an agent gains by answers of the first two, the form of the questions gives away by itself; what it gains by those
of `words` needs no understanding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise

from bkrl.core.errors import UsageError
from bkrl.core.seeds import generator
from bkrl.llm.protocol import Connection, Fault, FreeBackend, Message, Reply, Request, chances

HONESTY = {"annotator": "exact (optimal values of solved levels: the truth, not a language model)"}


class ControlBackend(FreeBackend):
    """Answers closed questions by no language model."""

    name = ""

    def __init__(self, spec: str, connection: Connection) -> None:
        self.seed = spec or str(connection.seed)

    async def complete(self, request: Request) -> Reply:
        if not request.choices:
            raise Fault("stop", "open question", f"--llm {self.name} answers closed questions only (--ask closed)")
        return Reply(chances(dict(zip(request.choices, self._told(request), strict=True))), model=self.name)

    def _told(self, request: Request) -> list[float]:
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        return {"annotator": f"control: closed questions answered {self.how}"}

    how = ""


class RandomBackend(ControlBackend):
    """Log-probabilities drawn for each conversation, by the seed that its name ends in (`random:SEED`) or the run's."""

    name, how = "random", "at random"

    def _told(self, request: Request) -> list[float]:
        words = "\n".join(message.text for message in request.messages)
        drawn = generator(0, "random answers", self.seed, words).dirichlet([1.0] * len(request.choices))
        return [math.log(max(float(one), 1e-9)) for one in drawn]


class EqualBackend(ControlBackend):
    """All words are equally likely."""

    name, how = "equal", "with equal chances"

    def _told(self, request: Request) -> list[float]:
        return [-math.log(len(request.choices))] * len(request.choices)


class WordsBackend(ControlBackend):
    """Of two segments the one whose end has more words, and more pairs of neighbouring words, of its mission."""

    name, how = "words", "by the words that a mission and the end of a segment have in common"
    _QUOTED = r'"((?:[^"\\]|\\.)*)"'

    def _told(self, request: Request) -> list[float]:
        shared = [self._shared(request.messages[-1].text, option) for option in request.choices]
        whole = math.log(sum(math.exp(one) for one in shared))
        return [one - whole for one in shared]

    def _shared(self, text: str, option: str) -> int:
        line = re.search(rf"^{re.escape(option)}: .*", text, re.MULTILINE)
        own = re.search(f"mission {self._QUOTED}", line[0]) if line else None
        mission = own or re.search(f"^Mission of both: {self._QUOTED}", text, re.MULTILINE)
        if line is None or mission is None:
            return 0
        wanted, seen = (re.findall(r"\w+", one.lower()) for one in (mission[1], re.findall(self._QUOTED, line[0])[-1]))
        return len({*wanted, *pairwise(wanted)} & {*seen, *pairwise(seen)})


class ExactBackend(ControlBackend):
    """The truth, which `inspect.truth` works out: `known`, conversation → the log-probability of each word."""

    name = "exact"
    known: Mapping[tuple[Message, ...], Mapping[str, float]]

    def __init__(self, spec: str, connection: Connection) -> None:
        raise UsageError("--llm exact knows moments of a dataset, and is for `bkrl label` alone.")

    @classmethod
    def of(cls, known: Mapping[tuple[Message, ...], Mapping[str, float]]) -> ExactBackend:
        """The annotator that knows this."""
        made = cls.__new__(cls)
        made.known = known
        return made

    def _told(self, request: Request) -> list[float]:
        if (found := self.known.get(request.messages)) is None:
            raise Fault("item", "unknown question", "exact values say nothing of that")
        return [found[word] for word in request.choices]

    def facts(self) -> dict[str, str]:
        return dict(HONESTY)
