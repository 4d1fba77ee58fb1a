"""What small language models read before they act: prompts made of recorded captions and missions, in many wordings.

The prompts hold no answers: what is learnt from them is language (P1). Answers of go-to episodes are apart (P2).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset
from bkrl.data.views import Views
from bkrl.envs import env_spec, family
from bkrl.envs.babyai.constants import ACTION_SETS, DONE, DONE_ENDS
from bkrl.envs.babyai.french import french_mission
from bkrl.text.language import french_actions
from bkrl.text.policy_prompts import FORMS, GOAL_LABELS, prompts
from bkrl.text.wording import Worded, Wording

_FORM = FORMS["glam"]
_IDLE = ("sleep", "do nothing", "think")
_MORE = re.compile(",| after you | and ")  # a mission of more than one task


def read(paths: Sequence[Path], most: int, seed: int) -> list[str]:
    """Distinct prompts from recorded steps, every other one in a wording of its own.

    Args:
        paths: collect runs.
        most: prompts from each of them, at most.
        seed: which steps are drawn, and in which wordings.
    """
    found: dict[str, None] = {}
    for path in paths:
        data = Dataset.open(path)
        rng = generator(seed, "corpus", path.name)
        rows = rng.permutation(len(data.observations))[:most]
        wordings = list(_wordings(data.env_id, data.text("mission")[1]))
        chosen = np.where(rng.random(len(rows)) < 0.5, 0, rng.integers(0, len(wordings), len(rows)))
        for number, worded in enumerate(wordings):
            found |= dict.fromkeys(_prompts(data, rows[chosen == number], worded))
    return list(found)


def answers(path: Path, episodes: int, seed: int) -> list[tuple[str, str]]:
    """Prompts, and the names of the actions taken there, of solved episodes of one go-to mission each, drawn by `seed`.

    Raises:
        InputError: there are fewer.
    """
    data = Dataset.open(path)
    missions = data.missions
    fitting = [
        episode
        for episode in range(data.num_episodes)
        if data.success[episode] and missions[episode].startswith("go to") and not _MORE.search(missions[episode])
    ]
    if len(fitting) < episodes:
        raise InputError(
            f"{path} holds {len(fitting)} solved go-to episodes, and {episodes} are asked for; record more with "
            "`bkrl collect --explorer bot`, or ask for fewer."
        )
    chosen = sorted(generator(seed, "answers").choice(fitting, episodes, replace=False).tolist())
    rows = np.concatenate([data.first_row[one] + np.arange(data.lengths[one]) for one in chosen])
    worded = next(_wordings(data.env_id))
    names = worded.action_names
    said = _prompts(data, rows, worded)
    return [(prompt, names[action]) for prompt, action in zip(said, data.actions[rows].tolist(), strict=True)]


def _prompts(data: Dataset, rows: NDArray[np.int64], worded: Worded) -> list[str]:
    """A prompt for each of the rows, with the present only."""
    if not len(rows):
        return []
    symbols = data.observations[rows]
    views = Views(symbols, text=worded.texts(symbols), mission=worded.missions(data.row_missions[rows]))
    made, index = prompts(_FORM, views, worded)
    return [str(made[number]) for number in index.tolist()]


def _wordings(env_id: str, missions: Sequence[str] = ()) -> Iterator[Worded]:
    """The plain wording first; in BabyAI, those of the generalisation tests too, in French where missions have one."""
    facts = env_spec(env_id)
    if "fr" not in family(facts.family).languages:
        yield Wording().of(facts)
        return
    more = ("done",) if env_id.startswith(DONE_ENDS) else _IDLE
    sets = [(*names[:DONE], *more)[: len(facts.action_names)] for names in ACTION_SETS.values()]
    fits = [names for names in sets if len(names) == len(facts.action_names)]
    usual = (*ACTION_SETS["canonical"], *more)[: len(facts.action_names)]
    yield Wording(actions=usual).of(facts)
    for names in fits:
        yield Wording(actions=names).of(facts)
    for label in GOAL_LABELS:
        yield Wording(actions=usual, goal_label=label).of(facts)
    for words in ("nouns", "colors", "invented-nouns", "invented-colors"):
        yield Wording(words=words, actions=usual).of(facts)
    try:
        [*map(french_mission, missions)]
    except InputError:  # MiniGrid's say other things
        return
    french = french_actions(usual)
    for words in ("", "", "nouns", "invented-nouns"):
        yield Wording(language="fr", words=words, actions=french).of(facts)
