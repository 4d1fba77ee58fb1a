"""Other words for what BabyAI says: synonyms, words that a policy has never read, French.

A policy is trained on one wording and evaluated on another. Source of the lists: the generalisation tests of GLAM
(Carta et al. 2023, arXiv 2302.02662). Words are replaced whole and at the same time, and articles follow; the published
code replaces them inside longer words, too. French captions come from the captioner of the environment
(`bkrl.envs.captioner`), French missions from `bkrl.envs.babyai.french`, French actions from here.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.babyai.captions import FRENCH_FEMININE, FRENCH_MASCULINE

LANGUAGES: Final = ("en", "fr")

# ----------------------------------------------------------------------------------------------------- word for word

_NOUNS = {"key": "chair", "ball": "table", "box": "car"}
_COLORS = {
    "red": "vermilion", "green": "jade", "blue": "cyan", "purple": "violet", "yellow": "golden", "grey": "silver",
}  # fmt: skip
_INVENTED_NOUNS = {"key": "dax", "ball": "xolo", "box": "afze"}
_INVENTED_COLORS = {
    "red": "faze", "green": "jatu", "blue": "croh", "purple": "vurst", "yellow": "gakul", "grey": "sil",
}  # fmt: skip

# The published French lists leave out masculine colours and misspell vermillon.
_LOCKED = {"fermée à clef": "fermée à clef"}  # said of a locked door, whatever keys are called
_COLORS_FR = {
    "rouge": "vermillon", "verte": "jade", "bleue": "cyan", "violette": "mauve", "jaune": "dorée", "gris": "argent",
    "vert": "jade", "bleu": "cyan", "violet": "mauve", "grise": "argent",
    "but jaune": "but doré", "sol jaune": "sol doré", "objet jaune": "objet doré",
}  # fmt: skip
_INVENTED_NOUNS_FR = {"clef": "dax", "balle": "xolo", "boîte": "afze", **_LOCKED}
_INVENTED_COLORS_FR = {
    **dict(zip(FRENCH_FEMININE, _INVENTED_COLORS.values(), strict=True)),
    **dict(zip(FRENCH_MASCULINE, _INVENTED_COLORS.values(), strict=True)),
}

WORDS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "nouns": {"en": _NOUNS, "fr": {"clef": "chaise", "balle": "table", "boîte": "voiture", **_LOCKED}},
    "colors": {"en": _COLORS, "fr": _COLORS_FR},
    "invented-nouns": {"en": _INVENTED_NOUNS, "fr": _INVENTED_NOUNS_FR},
    "invented-colors": {"en": _INVENTED_COLORS, "fr": _INVENTED_COLORS_FR},
    "invented-words": {
        "en": {**_INVENTED_NOUNS, **_INVENTED_COLORS},
        "fr": {**_INVENTED_NOUNS_FR, **_INVENTED_COLORS_FR},
    },
}
"""Name of a list → language → word → word that stands for it, for `Substitution`. Published as
other_name_same_categories, adj_synonym, no_meaning_nouns, no_meaning_adj, no_meaning_words."""


def words(name: str, language: str = "en") -> Mapping[str, str]:
    """A list of `WORDS`. Raises UsageError for another name."""
    if name not in WORDS:
        raise UsageError(f"There are no words '{name}'.{did_you_mean(name, WORDS)} There are: {', '.join(WORDS)}.")
    return WORDS[name][language]


class Substitution:
    """Replaces words of one language by others: whole words only, all at the same time, the longest that fits first.

    The article before a replaced word follows it: "a box" becomes "an afze", "la boîte" becomes "l'afze". That of a
    word that had lost it, as in "l'objet", is masculine, as objet is.
    """

    def __init__(self, words: Mapping[str, str], language: str = "en") -> None:
        self.words = dict(words)
        article = "an? " if language == "en" else "l[ae] |l'"
        longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?:\b({article}))?\b({longest_first})\b") if words else None
        self._cached = lru_cache(1 << 14)(self._replace)

    def __call__(self, text: str) -> str:
        """`text` in the other words."""
        return self._cached(text)

    def _replace(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(self._one, text)

    def _one(self, found: re.Match[str]) -> str:
        article, new = found[1] or "", self.words[found[2]]
        if article in ("a ", "an "):
            article = "an " if _begins_with_vowel(new) else "a "
        elif article and _begins_with_vowel(new):
            article = "l'"
        elif article == "l'":
            article = "le "
        return article + new


def _begins_with_vowel(word: str) -> bool:
    return word[:1].lower() in tuple("aeiouàâéèêëîïôû")


# ------------------------------------------------------------------------------------------------------------ actions

ACTIONS_FR: Final[Mapping[str, str]] = {
    "turn left": "tourner à gauche", "turn right": "tourner à droite", "go forward": "aller tout droit",
    "pick up": "attraper", "drop": "lâcher", "toggle": "basculer", "eat": "manger", "dance": "danser",
    "sleep": "dormir", "do nothing": "ne rien faire", "cut": "couper", "think": "penser",
}  # fmt: skip

_SAID_FR: Final = {**ACTIONS_FR, "done": "terminer"}
"""With one that is no token of our small models, which are made of `ACTIONS_FR`."""


def french_actions(names: Sequence[str]) -> tuple[str, ...]:
    """Names of actions in French. Raises UsageError for one that is not in `ACTIONS_FR`."""
    for name in names:
        if name not in _SAID_FR:
            near = did_you_mean(name, _SAID_FR)
            raise UsageError(f"The action '{name}' has no French name.{near} There are: {', '.join(_SAID_FR)}.")
    return tuple(_SAID_FR[name] for name in names)
