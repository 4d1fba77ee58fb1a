"""Programs that grow: the best one with one sub-goal more, or one less (`bkrl evolve --ask closed`).

A model is asked twice, by closed questions: how important each sub-goal of the env is, and of each pair, whether one
has to be done in order to do the other. Nothing else is asked. Its answers say which sub-goal is tried next, and what
has to be done before that counts; agents that are trained say whether it stays. All sub-goals of a program weigh the
same. The idea of skills with prerequisites that are kept if they work is CODE-SHARP's (arXiv 2602.10085), whose model
writes them as code.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from bkrl.labelers.closed import CLOSED, AnswerRecord, ask_of_subgoals, ratings_of, subgoals, sum_of
from bkrl.labelers.code import Candidate, checker, validation_set
from bkrl.labelers.plan import LENGTH, Plan
from bkrl.labelers.proposals import Result
from bkrl.llm.choose import settled
from bkrl.llm.protocol import Exchange, Request
from bkrl.llm.session import AskSession

Parts = tuple[tuple[str, str], ...]
"""The sub-goals of a program, each with the one that has to be done before it counts, "" where there is none."""
_WAYS: Final[tuple[Literal["alone"], Literal["need"]]] = ("alone", "need")


def questions_of(plan: Plan) -> list[Request]:
    """All that is ever asked."""
    return [one for way in _WAYS for one in CLOSED["code"].requests(replace(plan, rate=way))]


class Grower:
    """Proposes programs about a dataset; see the module.

    Args:
        plan: of code labels; `plan.votes` programs are proposed at a time.
        session: of the annotator.
    """

    def __init__(self, plan: Plan, session: AskSession) -> None:
        self.plan, self.session, self.record = plan, session, AnswerRecord()
        self.validation = validation_set(plan.dataset, LENGTH["code"], plan.seed)
        self.named = subgoals(plan)
        self._parts: dict[str, Parts] = {}

    @cached_property
    def _told(self) -> tuple[NDArray[np.float64], list[str], list[Exchange]]:
        """(S,) ratings, for each of the S sub-goals the one that it needs most, and who rated it."""
        plans = (replace(self.plan, rate=way, votes=1) for way in _WAYS)  # `votes` of the plan are proposals
        rated, needs = (ask_of_subgoals(plan, self.named, self.session, self.record) for plan in plans)
        ratings = ratings_of(np.stack([one.scores for one in rated]), "alone")
        chances = np.full((len(ratings), len(ratings)), -1.0)
        of_pairs = np.exp(settled(np.stack([one.scores for one in needs]))[0])[:, 0]
        chances[~np.eye(len(ratings), dtype=bool)] = np.nan_to_num(of_pairs, nan=-1.0)
        names = list(self.named)
        first = [names[place] for place in chances.argmax(0)]
        return np.nan_to_num(ratings, nan=-1.0), first, [one.exchanges[-1][-1] for one in rated]

    def propose(self, round_number: int, best: Result | None, known: Collection[str]) -> list[Candidate]:
        """The programs of a round, in order, none of them proposed before; fewer where all were. See `Proposer`."""
        begun = () if best is None else self._parts[str(best.candidate.program)]
        check = checker(self.plan.dataset, self.plan.card.mission_words, len(self.plan.card.memory))
        exchanges = dict(zip(self.named, self._told[2], strict=True))
        found: list[Candidate] = []
        for changed, parts in self._changes(begun):
            if len(found) == self.plan.votes:
                break
            program = self.program(parts)
            if program not in self._parts:
                self._parts[program] = parts
                checked = check(program, self.validation.windows)
                found.append(Candidate(len(found), round_number, program, checked, exchanges[changed]))
        return found

    def _changes(self, begun: Parts) -> Iterator[tuple[str, Parts]]:
        """All programs that are one sub-goal from this one, with its name: those with one more, the most important
        first, behind what it needs most where that is in the program; then the same without that; then those with one
        less, the least important first.
        """
        ratings, first, _ = self._told
        order = [list(self.named)[place] for place in np.argsort(-ratings, kind="stable")]
        needed, inside = dict(zip(self.named, first, strict=True)), {name for name, _ in begun}
        new = [name for name in order if name not in inside]
        yield from ((name, (*begun, (name, needed[name] if needed[name] in inside else ""))) for name in new)
        yield from ((name, (*begun, (name, ""))) for name in new)
        less = [name for name in reversed(order) if name in inside] if len(begun) > 1 else []
        yield from ((name, tuple(part for part in begun if part[0] != name)) for name in less)

    def program(self, parts: Parts) -> str:
        """The sum of these sub-goals, each of which weighs the same."""
        rows = []
        for name, before in parts:
            how = self.named[name][1]
            gated = f"{how} * ({self.named[before][1]} >= 1)" if before else how
            said = self.named[name][0] + (f", once this is done: {self.named[before][0]}" if before else "")
            rows.append((f"{name}_after_{before}" if before else name, 1 / len(parts), gated, said))
        return sum_of(rows, "Sub-goals that weigh the same, one added after the other.", bool(self.plan.card.memory))
