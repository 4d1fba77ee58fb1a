"""`rules`: a hand-written annotator that stands in for a language model, without a key, a download or a cent.

It reads the very prompt a language model would get and answers in the same form. What it knows is general knowledge
of the two families of envs, written as code in this package: it is *not* a language model, it understands no other
env, and it never learns which task an agent has (the prompt does not say).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bkrl.llm.protocol import Connection, Fault, FreeBackend, Reply, Request
from bkrl.llm.rules import babyai, crafter, housekeep, tidying
from bkrl.llm.rules.belongings import belongs
from bkrl.llm.rules.memories import programs_of_memory, worth_of
from bkrl.llm.rules.proposals import proposed
from bkrl.llm.rules.segment import ReadSegment, read_segment, unknown_prompt

HONESTY = "rules (hand-written heuristics, not a language model)"
TIE_MARGIN = 0.1
"""Scores closer than this are a tie."""
DONE_WEIGHT = 20.0
"""What having done all sub-goals of an env adds to a segment's score: a door unlocked before it weighs as much as one
opened in it.
"""


@dataclass(frozen=True)
class Knowledge:
    """What the annotator knows of one family of envs.

    `judge`: a segment's score and the reason for it in words; `goals`: what to do next; `programs`: potentials from
    simple to rich, given the whole prompt (which describes the observation's layout); `deeds`: what to do now, given
    ELLM's text observation (none where it knows no such text); `belongs`: whether a thing is put away in a place.
    """

    judge: Callable[[ReadSegment], tuple[float, str]]
    goals: Callable[[ReadSegment], list[str]]
    programs: Callable[[str], list[str]]
    deeds: Callable[[str], list[str]] = lambda text: []
    belongs: Callable[[str, str], bool] = lambda thing, place: False


KNOWLEDGE = {
    "BabyAI": Knowledge(babyai.judge, babyai.goals, babyai.programs),
    "Crafter": Knowledge(crafter.judge, crafter.goals, crafter.programs, crafter.deeds),
    "Housekeep": Knowledge(housekeep.judge, housekeep.goals, tidying.programs, belongs=belongs),
}
_QUOTED = r'"(?:[^"\\]|\\.)*"'


class RulesBackend(FreeBackend):
    """Answers from `KNOWLEDGE`."""

    name, honesty = "rules", HONESTY

    def __init__(self, spec: str, connection: Connection) -> None:
        if spec:
            raise ValueError("rules takes no name")

    async def complete(self, request: Request) -> Reply:
        turns = [message.text for message in request.messages]
        return Reply(answer(turns, self.knowledge(), self.name), model=self.name)

    def knowledge(self) -> Mapping[str, Knowledge]:
        """What is known of each family of envs."""
        return KNOWLEDGE

    def facts(self) -> dict[str, str]:
        return {"annotator": self.honesty}


def answer(turns: list[str], knowledge: Mapping[str, Knowledge] = KNOWLEDGE, name: str = "rules") -> str:
    """The reply to a conversation whose turns are given as text, the first holding env and task. Raises Fault.

    Args:
        turns: see above.
        knowledge: what is known of each family of envs.
        name: of who answers.
    """
    family = re.search(r"^# World: (\w+)", turns[0], re.MULTILINE)
    task = re.search(r"^# Task: (\w+)", turns[0], re.MULTILINE)
    known = knowledge.get(family[1]) if family else None
    if known is None or task is None:
        raise Fault(
            "stop",
            "unknown world",
            f"The {name} annotator knows {', '.join(knowledge)} and no other env; name a language model with --llm.",
        )
    if task[1] == "compare":
        return _compare(known, family[1], turns[1])  # type: ignore[index]
    if task[1] == "suggest":
        return json.dumps({"goals": known.goals(read_segment(turns[1]))}, ensure_ascii=False)
    if task[1] == "belongs":
        asked = re.match(rf"Thing: ({_QUOTED})\. Place: ({_QUOTED})\. ", turns[1])
        if asked is None:
            raise unknown_prompt()
        return "Yes" if known.belongs(json.loads(asked[1]), json.loads(asked[2])) else "No"
    if task[1] == "explore":
        situation = re.match(_QUOTED, turns[1])
        if situation is None:
            raise unknown_prompt()
        return "\n".join(f"- {deed.capitalize()}" for deed in known.deeds(json.loads(situation[0])))
    return _write(programs_of_memory(family[1], turns[0]) or known.programs(turns[0]), turns)  # type: ignore[index]


def _compare(known: Knowledge, family: str, text: str) -> str:
    a, b = (read_segment(text, name) for name in "AB")
    (score_a, why_a), (score_b, why_b) = known.judge(a), known.judge(b)
    score_a, score_b = (
        score + DONE_WEIGHT * worth_of(family, one.done or {}) for score, one in ((score_a, a), (score_b, b))
    )
    if abs(score_a - score_b) < TIE_MARGIN:
        choice = "tie"
    else:
        choice = "A" if score_a > score_b else "B"
    return json.dumps({"thoughts": f"In A the agent {why_a}; in B it {why_b}.", "choice": choice})


def _write(programs: list[str], turns: list[str]) -> str:
    """The next of the annotator's programs after the last one that stands in the conversation; the last one for
    ever. As a proposal, the program of that number, or the one that stands there with another weight.
    """
    proposal = re.search(r"This is proposal (\d+) of \d+", turns[-1])
    if proposal is not None:
        given = re.findall(r"```python\n(.*?)\n```", "\n".join(turns[1:-1]), re.DOTALL)
        return f"```python\n{proposed(programs, given[-1] if given else '', int(proposal[1]) - 1).strip()}\n```"
    found = [index for index, program in enumerate(programs) for turn in turns[1:] if program.strip() in turn]
    index = min(max(found) + 1, len(programs) - 1) if found else 0
    return f"```python\n{programs[index].strip()}\n```"
