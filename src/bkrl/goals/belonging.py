"""Where Housekeep's things belong, as judges that ask nobody, and how well any judge knows it.

Words are those of captions. The votes are the ground truth; whoever else is asked is measured against them.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from bkrl.core.config import AskConfig
from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.core.seeds import generator
from bkrl.envs.housekeep.labels import truth
from bkrl.envs.housekeep.tables import priors, tasks, votes, words
from bkrl.goals.closed import AskedJudge
from bkrl.goals.judges import Judge, KnownJudge, Question, Scores, noisy, scores
from bkrl.llm.choose import Chooser
from bkrl.llm.opening import open_session
from bkrl.stats.ranks import area_with_interval
from bkrl.text.prompts import SHIPPED

PRIORS: Final = ("zs_mlm",)
LEAKING: Final = ("roberta_cm", "glove_cm")
"""Shipped priors that were trained on the votes of the train classes: they know the answers (data pack, Warnings)."""
PLAIN: Final = ("oracle", "noisy", "novelty", "uniform", *PRIORS)
FREE: Final = ("oracle", "noisy", "rules", *PRIORS, "novelty")
THINGS: Final = ("tasks", "seen", "unseen", "all")


def plain_judge(name: str, house: str = "", accuracy: float = 1.0, seed: int = 0) -> Judge | None:
    """The judge of this name that asks nobody, for a scene (as in `truth`); None for another name. What it knows of
    places that the scene lacks holds for all houses, so that a policy finds goals in another house than its own.

    Raises:
        UsageError: a prior that knows the votes.
    """
    if name in LEAKING:
        raise UsageError(
            f"The prior {name} was trained on the votes of the train classes, so it knows the answers it would be "
            f"judged by; use {PRIORS[0]}, which was not."
        )
    if name in ("novelty", "uniform"):
        return KnownJudge(name, lambda question: 1.0, knows=False)
    if name in PRIORS:
        return _prior(name)
    if name not in ("oracle", "noisy"):
        return None
    known = truth() | truth(house)
    oracle = KnownJudge("oracle", lambda question: float(known[question]) if question in known else math.nan)
    return oracle if name == "oracle" else noisy(oracle, accuracy, seed)


def _prior(name: str) -> Judge:
    """Yes where a thing fits a room better than it fits the average room: the room's score / (that + the mean)."""
    fits: dict[str, dict[str, float]] = {}
    for thing, rooms in priors()[name].items():
        mean = sum(rooms.values()) / len(rooms)
        fits[words(thing)] = {words(room): fit / (fit + mean) for room, fit in rooms.items()}
    longest_first = sorted(next(iter(fits.values())), key=len, reverse=True)

    def answer(question: Question) -> float:
        thing, place = question
        room = next((one for one in longest_first if place.startswith(f"{one} ")), "")
        return fits.get(thing, {}).get(room, math.nan)

    return KnownJudge(name, answer)


def things(which: str) -> list[str]:
    """The things of the paper's four tasks, those of the train split (seen), the others (unseen), or all.

    Raises:
        UsageError: none of these.
    """
    if which not in THINGS:
        raise UsageError(f"There are no things '{which}'.{did_you_mean(which, THINGS)} Known: {', '.join(THINGS)}.")
    said = votes()
    if which == "tasks":
        return [words(name) for name in dict.fromkeys(name for task in tasks() for name in task)]
    pairs = zip(said.objects, said.splits, strict=True)
    return [words(name) for name, split in pairs if which == "all" or (split == "train") == (which == "seen")]


def questions_about(which: str, house: str = "", most: int = 0) -> list[Question]:
    """Each of these things in each place of a house; with `most`, so many of these pairs, half of them right ones.

    Which ones is drawn once for ever, and fewer are among more.
    """
    known, wanted = truth(house), set(things(which))
    asked = [question for question in known if question[0] in wanted]
    if most:
        rng = generator(0, "belongs", which, house)
        order = [asked[i] for i in rng.permutation(len(asked))]
        parts = (True, -(-most // 2)), (False, most // 2)
        asked = [one for is_right, count in parts for one in [q for q in order if known[q] == is_right][:count]]
    return asked


def measured(judge: Judge, which: str, house: str = "", most: int = 0) -> tuple[Scores, dict[str, Any]]:
    """How well a judge knows where these things belong in a house, by `questions_about` them; and how surely.

    An answer that does not come counts as none. `balanced` and `auc` have 95 % percentile bootstraps over things;
    `auc` is how often a right place has a higher probability than a wrong one, of those with an opinion.
    """
    known, asked = truth(house), questions_about(which, house, most)
    said = judge.judge(asked)
    found = scores(said, [known[question] for question in asked])
    if most:
        every = [known[question] for question in questions_about(which, house)]
        found = found.weighted(sum(every) / len(every))
    rows, columns = ({name: i for i, name in enumerate(dict.fromkeys(side))} for side in zip(*asked, strict=True))
    told, right = np.full((len(rows), len(columns)), np.nan), np.zeros((len(rows), len(columns)), bool)
    yes = told.copy()
    for question, answer in zip(asked, said, strict=True):
        place = rows[question[0]], columns[question[1]]
        told[place], right[place] = np.nan if answer is None else answer, known[question]
        yes[place] = told[place] > 0.5
    sure = {"balanced": area_with_interval(yes, right), "auc": area_with_interval(told, right)}
    return found, {"things": len(rows), **sure}


def open_judge(
    name: str,
    house: str,
    stack: ExitStack,
    *,
    accuracy: float = 1.0,
    seed: int = 0,
    votes: int = 5,
    max_tokens: int = 200,
    wait: bool = True,
    asking: AskConfig | None = None,
) -> Judge:
    """A judge by its name: see `plain_judge`, `goals.closed.AskedJudge` and `llm.opening.open_session`."""
    plain = plain_judge(name, house, accuracy, seed)
    if plain is not None:
        return plain
    session = open_session(name, asking or AskConfig(), stack, PLAIN, "suggester", seed=seed)
    return AskedJudge(name, Chooser(session, votes=votes, max_tokens=max_tokens, wait=wait), SHIPPED)


def compared(
    names: Sequence[str], which: str, house: str, accuracy: float, votes: int, asking: AskConfig, most: int = 0
) -> tuple[list[str], list[list[Any]]]:
    """A row for each judge (`FREE` without names): how its answers compare with the votes, as `measured` has them, and
    how many requests it took.
    """
    found = []
    for name in names or FREE:
        with ExitStack() as stack:
            judge = open_judge(name, house, stack, accuracy=accuracy, votes=votes, asking=asking)
            figures, sure = measured(judge, which, house, most)
            row: dict[str, Any] = {"suggester": f"{name} ({accuracy:g})" if name == "noisy" else name}
            row |= {key: None if value != value else value for key, value in asdict(figures).items()}
            row |= {"things": sure["things"], "auc": sure["auc"]["value"]}
            row |= {f"{key}_{end}": sure[key][end] for key in ("balanced", "auc") for end in ("low", "high")}
            found.append(row | {"requests": judge.session.budget.sent if judge.session else 0})
    return list(found[0]), [list(row.values()) for row in found]
