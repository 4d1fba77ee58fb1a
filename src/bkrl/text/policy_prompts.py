"""What a language model that acts is asked: prompts from missions, action names and the last observations.

Three published forms, each a pure function of plain values: `glam` (Carta et al. 2023, arXiv 2302.02662), byte for
byte; `lamorel`, the shorter one of Lamorel's examples; `balrog`, the chat of BALROG (Paglieri et al. 2024, arXiv
2411.13543): its turns and what each one holds, in words of our own. `prompts` makes those of N agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bkrl.data.distinct import distinct_rows
from bkrl.data.views import Turn, ViewKeys, ViewName, Views

if TYPE_CHECKING:
    from bkrl.text.wording import Worded

Chat: TypeAlias = tuple[tuple[str, str], ...]
"""(role, text) of each turn; the roles are "user" and "assistant"."""


@dataclass(frozen=True)
class Labels:
    """What prompts say in one language beside missions, actions and observations.

    Attributes:
        actions, goal: the two labels of `glam`; `goal` that of `lamorel`, too.
        sees: how sentences begin that say what is seen; `balrog` leaves it out.
        opening, then, now, answer: parts of the `balrog` chat; `opening` is filled in with `mission` and `actions`.
        meanings: of BabyAI's actions, in their order, for `opening`, and `idle` of the actions after these; empty for
            other envs.
    """

    actions: str
    goal: str
    sees: str
    opening: str
    then: str
    now: str
    answer: str
    meanings: tuple[str, ...]
    idle: str


ENGLISH: Final = Labels(
    actions="Possible action of the agent",
    goal="Goal of the agent",
    sees="You see ",
    opening="You move through a world of square cells. Your goal: {mission}.\nIn each step you choose one of these "
    "actions:\n\n{actions}\n\nEach observation lists what you see and where it is, as steps from you.",
    then="Observation:",
    now="Current observation:",
    answer="Answer with the name of one action and nothing else.\nAction:",
    meanings=(
        "turn to the left where you stand", "turn to the right where you stand", "take one step forward",
        "pick up the object in the cell in front of you", "put what you carry into the cell in front of you",
        "open, close or unlock what is in the cell in front of you",
    ),
    idle="nothing happens",
)  # fmt: skip
FRENCH: Final = Labels(
    actions="Actions possibles pour l'agent",
    goal="But de l'agent",
    sees="Tu vois ",
    opening="Tu te déplaces dans un monde de cases carrées. Ton but : {mission}.\nÀ chaque pas, tu choisis une de ces "
    "actions :\n\n{actions}\n\nChaque observation énumère ce que tu vois et où, en pas à partir de toi.",
    then="Observation :",
    now="Observation actuelle :",
    answer="Réponds par le nom d'une action et rien d'autre.\nAction :",
    meanings=(
        "te tourner à gauche sur place", "te tourner à droite sur place", "avancer d'une case",
        "prendre l'objet dans la case devant toi", "poser ce que tu portes dans la case devant toi",
        "ouvrir, fermer ou déverrouiller ce qui est dans la case devant toi",
    ),
    idle="rien ne se passe",
)  # fmt: skip
LABELS: Final[Mapping[str, Labels]] = {"en": ENGLISH, "fr": FRENCH}

GOAL_LABELS: Final[Mapping[str, Mapping[str, str]]] = {
    "speaker": {"en": "I would like the agent to", "fr": "Je veux que l'agent fasse"},
    "agent": {"en": "You have to", "fr": "Tu dois faire"},
}
"""Other labels of the goal, by name and language. Published as change_intro_first_personne_speaker and …_agent."""


def glam(turns: Sequence[Turn], mission: str, actions: Sequence[str], labels: Labels = ENGLISH) -> str:
    """GLAM's prompt. Observations are numbered by their place in the window; it ends in "Action k: "."""
    seen = (
        f" \n Observation {i}: {''.join(f'{sentence}, ' for sentence in sentences)}\n Action {i}: {action}"
        for i, (sentences, action) in enumerate(turns)
    )
    return f"{labels.actions}: {', '.join(actions)} \n {labels.goal}: {mission}{''.join(seen)}"


def lamorel(turns: Sequence[Turn], mission: str, actions: Sequence[str], labels: Labels = ENGLISH) -> str:
    """The prompt of Lamorel's examples: the goal and the present, neither history nor a list of actions."""
    return f"{labels.goal}: {mission}\nObservation: {', '.join(turns[-1][0])}\nAction:"


def balrog(turns: Sequence[Turn], mission: str, actions: Sequence[str], labels: Labels = ENGLISH) -> Chat:
    """BALROG's chat: goal and actions first, then each observation and the answer to it, at last the question."""
    pairs = zip_longest(actions, labels.meanings[: len(actions)], fillvalue=labels.idle)
    listed = "\n".join(f"{action}: {what}" if what else action for action, what in pairs)
    chat = [("user", labels.opening.format(mission=mission, actions=listed))]
    for sentences, action in turns[:-1]:
        chat += [("user", f"{labels.then}\n{_lines(sentences, labels)}"), ("assistant", action)]
    return (*chat, ("user", f"{labels.now}\n{_lines(turns[-1][0], labels)}\n\n{labels.answer}"))


def _lines(sentences: Sequence[str], labels: Labels) -> str:
    return "\n".join(sentence.removeprefix(labels.sees) for sentence in sentences)


# Sentences are given without full stops.
Form: TypeAlias = Callable[[Sequence[Turn], str, Sequence[str], Labels], str | Chat]
FORMS: Final[Mapping[str, Form]] = {"glam": glam, "lamorel": lamorel, "balrog": balrog}
PRESENT_ONLY: Final = (lamorel,)
"""The forms that show no history."""


def wants_of(form: str, observations: int) -> tuple[ViewName, ...]:
    """What an agent wants that reads so many observations in a form, by its name."""
    past = observations > 1 and FORMS[form] not in PRESENT_ONLY
    return ("text", "mission", "history") if past else ("text", "mission")


def prompts(form: Form, views: Views, worded: Worded) -> tuple[list[str | Chat], NDArray[np.int64]]:
    """The prompts of N agents, equal ones once.

    Args:
        form: one of `FORMS`.
        views: (N,) rows, with text and mission; those with `history` show it.
        worded: the wording in which the views were made.

    Returns:
        K different prompts, and for each agent (N,) the index of its own.
    """
    text, mission, history = views.text, views.mission, views.history
    if text is None or mission is None:
        raise ValueError("prompts need text and mission")
    wants: list[ViewName] = ["text", "mission", "history"]
    chosen, index = distinct_rows(ViewKeys(wants if history is not None else wants[:2])(views))
    made = []
    for row in chosen:
        past = [] if history is None else list(filter(None, history[row]))
        turns = [([s.removesuffix(".") for s in seen], name) for seen, name in [*past, (text[row], "")]]
        made.append(form(turns, mission[row], worded.action_names, worded.labels))
    return made, index
