"""Proposals of programs: several at a time, each told what came of the best one so far."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bkrl.labelers.asking import turns
from bkrl.labelers.closed import AnswerRecord
from bkrl.labelers.code import FAILURES, Candidate, Validation, Writer, checker, feedback_on, opening_of, validation_set
from bkrl.labelers.plan import LENGTH, Plan
from bkrl.llm.protocol import Message, Request
from bkrl.llm.session import AskSession

TEMPLATE = "code_evolve"


@dataclass(frozen=True)
class Result:
    """What training with a program showed, for its writer.

    Attributes:
        candidate: the program.
        steps: of the evaluations that are shown.
        tasks: for each task the shares of episodes solved at these steps, `with` the program and `without`.
        score: on average on the way; others: the same of other programs, best first.
    """

    candidate: Candidate
    steps: Sequence[int] = ()
    tasks: Sequence[Mapping[str, Sequence[float]]] = ()
    score: float = 0.0
    others: Sequence[float] = field(default=())


class Proposer:
    """Asks for programs about a dataset.

    Args:
        plan: of code labels; `plan.votes` programs are asked for at a time.
        session: of the annotator.
    """

    def __init__(self, plan: Plan, session: AskSession) -> None:
        self.plan, self.session, self.record = plan, session, AnswerRecord()
        self.validation: Validation = validation_set(plan.dataset, LENGTH["code"], plan.seed)
        self.opening = opening_of(plan, self.validation)
        self._held: Counter[tuple[Message, ...]] = Counter()

    def requests(self) -> list[Request]:
        """What `plan.num` rounds ask at most, where each program passes its check."""
        return self.plan.sampling.conversations([self._asked(n, None) for n in range(self.plan.votes)], self.plan.num)

    def propose(self, round_number: int, best: Result | None, known: Collection[str]) -> list[Candidate]:
        """The programs of a round, in order; one that fails its check is mended by its writer, a few times at most.

        Args:
            round_number: which one; candidates say it.
            best: what the programs are to improve on; None: they begin anew.
            known: programs that need no check, because they were proposed before.
        """
        env = self.plan.card
        check = checker(self.plan.dataset, env.mission_words, len(env.memory))
        writer = Writer(self.session, self.plan.sampling, self.validation.windows, check)

        async def hold(number: int) -> list[Candidate]:
            messages = self._asked(number, best)
            drawn = self._held[messages]  # after a round that trained nothing new: the same prompt, other answers
            self._held[messages] += self.plan.votes
            candidates: list[Candidate] = []
            for _ in range(FAILURES):
                candidate, said = await writer.ask(messages, number, round_number, known, drawn)
                candidates.append(candidate)
                if not candidate.checked.error or candidate.exchange.answer is None:
                    break
                mend = turns(env.prompts.render("code_error", error=candidate.checked.error))
                messages = (*messages, Message("assistant", said), *mend)
            return candidates

        jobs: list[Callable[[], Awaitable[list[Candidate]]]] = [partial(hold, n) for n in range(self.plan.votes)]
        return [one for held in self.session.run(jobs, f"round {round_number + 1}") for one in held]

    def _asked(self, number: int, best: Result | None) -> tuple[Message, ...]:
        """The conversation in which a proposal is made."""
        shown = best or Result(candidate=None)  # type: ignore[arg-type]
        values: dict[str, Any] = {
            "steps": shown.steps,
            "tasks": shown.tasks,
            "score": shown.score,
            "others": shown.others,
        }
        rendered = self.plan.card.prompts.render(TEMPLATE, **values, number=number + 1, count=self.plan.votes)
        text = rendered[-1][1]
        if best is None:
            return (*self.opening[:-1], _longer(self.opening[-1], text))
        said = Message("assistant", f"```python\n{str(best.candidate.program).strip()}\n```")
        feedback = turns(feedback_on(self.plan.card, self.plan.dataset, self.validation, best.candidate.checked))
        return (*self.opening, said, *feedback[:-1], _longer(feedback[-1], text))


def _longer(message: Message, text: str) -> Message:
    return Message(message.role, f"{message.text}\n\n{text}")
