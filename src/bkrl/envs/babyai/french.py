"""BabyAI's missions in French, as GLAM's tests of generalisation have them (Carta et al. 2023, arXiv 2302.02662)."""

from collections.abc import Mapping
from functools import lru_cache

from bkrl.envs.babyai.captions import FRENCH_FEMININE, FRENCH_MASCULINE, FRENCH_NOUNS
from bkrl.envs.babyai.constants import COLOR_NAMES, TYPE_NAMES
from bkrl.envs.babyai.grammar import Task, Thing, read_mission

_FRENCH = {
    **dict(zip(TYPE_NAMES, FRENCH_NOUNS, strict=False)),
    "object": "objet",
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
_TO_DO = {"go to": "aller à", "pick up": "attraper", "open": "ouvrir", "put": "mettre"}
_DONE = {"go to": "être allé à", "pick up": "avoir attrapé", "open": "avoir ouvert", "put": "avoir mis"}


@lru_cache(1 << 14)
def french_mission(mission: str) -> str:
    """A mission of BabyAI in French, as some levels of GLAM state theirs already; InputError for another sentence."""
    if mission.startswith(tuple(_TO_DO.values())):
        return mission
    read = read_mission(mission)
    first = " et ".join(_task(task, _TO_DO) for task in read.tasks)
    others = " et ".join(_task(task, _DONE if read.order == "after" else _TO_DO) for task in read.others)
    return first + {"": "", "then": ", puis ", "after": " après "}[read.order] + others


def _task(task: Task, verbs: Mapping[str, str]) -> str:
    done = f"{verbs[task.verb]} {_thing(task.thing)}"
    if task.beside is None:
        return done
    of = "d'" if task.beside.article == "a" else "de "  # d'une boîte, de la boîte, de l'objet
    return f"{done} à côté {of}{_thing(task.beside)}"


def _thing(thing: Thing) -> str:
    """An object with its article, its colour in the gender of its noun, and its place."""
    noun, masculine = _FRENCH[thing.noun], thing.noun == "object"
    if thing.article == "a":
        article = "un " if masculine else "une "
    else:
        article = "l'" if masculine else "la "  # the one masculine noun begins with a vowel
    forms = FRENCH_MASCULINE if masculine else FRENCH_FEMININE
    color = forms[COLOR_NAMES.index(thing.color)] if thing.color else ""
    return " ".join(filter(None, (article + noun, color, _FRENCH.get(thing.place, ""))))
