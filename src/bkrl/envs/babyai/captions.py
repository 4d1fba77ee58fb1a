"""Captions: what an agent sees in a BabyAI view, as sentences.

A caption is a pure function of the (7, 7, 3) view and of nothing else: the occluded view holds no hidden cell, and what
the agent carries shows in its own cell. The sentence forms are those of BabyAI-Text (Carta et al. 2023, arXiv
2302.02662), in this order: what is carried; a wall ahead, to the left, to the right; then each visible object, column
by column from the left and from far to near within a column. Sentences are joined by ". " and closed with ".".

The published captioner has defects, which are mended unless `compat` asks for them:

* an open door was "a open red door"; it is "an open red door";
* a wall vanished from the text when anything stood before it on its ray; it is reported wherever it is seen;
* an empty list of sentences gave an empty text; it says that nothing is to be seen;
* lava was "a red lava" and a floor tile "a blue floor"; they are "lava" and "a blue floor tile";
* French left the carried object in English and made every noun feminine; it is translated and agrees in gender.

That the published code sometimes described hidden cells cannot be had from the view, so `compat` leaves it out.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError, UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.babyai.constants import (
    AGENT_X,
    AGENT_Y,
    COLOR_NAMES,
    DOOR,
    EMPTY,
    FLOOR,
    LAVA,
    OBS_SHAPE,
    OPEN,
    STATE_NAMES,
    TYPE_NAMES,
    VIEW,
    WALL,
)

# In the order of `TYPE_NAMES` and of `COLOR_NAMES`.
FRENCH_NOUNS: Final = ("", "", "mur", "sol", "porte", "clef", "balle", "boîte", "but", "lave")
FRENCH_MASCULINE: Final = ("rouge", "vert", "bleu", "violet", "jaune", "gris")
FRENCH_FEMININE: Final = ("rouge", "verte", "bleue", "violette", "jaune", "grise")
_MASCULINE_NOUNS: Final = ("mur", "sol", "but")
REMEMBERED_VIEWS: Final = 65_536  # about 30 MB when full
_CELL_BYTES: Final = 3
_VIEW_BYTES: Final = VIEW * VIEW * _CELL_BYTES
_AGENT_CELL: Final = AGENT_X * VIEW + AGENT_Y
# The cells (x * VIEW + y) of the three rays on which walls are reported, nearest first.
_RAYS: Final = (
    slice(_AGENT_CELL - 1, AGENT_X * VIEW - 1, -1),
    slice(_AGENT_CELL - VIEW, None, -VIEW),
    slice(_AGENT_CELL + VIEW, None, VIEW),
)
# Type channel → 1 where the cell holds something that gets a sentence of its own.
_IS_THING: Final = bytes(kind > WALL for kind in range(256))
_IS_THING_OR_WALL: Final = bytes(kind > EMPTY for kind in range(256))


class _English:
    nothing = "You see nothing"

    def __init__(self, compat: bool) -> None:
        self.compat = compat

    def carry(self, kind: int, color: int) -> str:
        return f"You carry a {COLOR_NAMES[color]} {TYPE_NAMES[kind]}"

    def walls(self, distance: int) -> tuple[str, str, str]:
        steps = self._steps(distance)
        return f"You see a wall {steps} forward", f"You see a wall {steps} left", f"You see a wall {steps} right"

    def thing(self, kind: int, color: int, state: int, right: int, ahead: int) -> str:
        return f"You see {self._noun(kind, color, state)} {self._where(right, ahead)}"

    def _noun(self, kind: int, color: int, state: int) -> str:
        if kind == DOOR:
            article = "an" if state == OPEN and not self.compat else "a"
            return f"{article} {STATE_NAMES[state]} {COLOR_NAMES[color]} door"
        if not self.compat and kind == LAVA:
            return "lava"
        if not self.compat and kind == FLOOR:
            return f"a {COLOR_NAMES[color]} floor tile"
        return f"a {COLOR_NAMES[color]} {TYPE_NAMES[kind]}"

    def _where(self, right: int, ahead: int) -> str:
        side = f"{self._steps(abs(right))} {'right' if right > 0 else 'left'}" if right else ""
        front = f"{self._steps(ahead)} forward" if ahead else ""
        return f"{side} and {front}" if side and front else side or front

    @staticmethod
    def _steps(count: int) -> str:
        return f"{count} step" if count == 1 else f"{count} steps"


class _French:
    nothing = "Tu ne vois rien"
    _STATES = ("ouverte", "fermée", "fermée à clef")

    def __init__(self, compat: bool) -> None:
        self.compat = compat

    def carry(self, kind: int, color: int) -> str:
        if self.compat:
            return f"Tu portes une {TYPE_NAMES[kind]} {COLOR_NAMES[color]}"
        return f"Tu portes {self._noun(kind, color)}"

    def walls(self, distance: int) -> tuple[str, str, str]:
        wall = f"Tu vois un mur à {distance} pas"
        return f"{wall} devant", f"{wall} à gauche", f"{wall} à droite"

    def thing(self, kind: int, color: int, state: int, right: int, ahead: int) -> str:
        if kind == DOOR:
            noun = f"une porte {FRENCH_FEMININE[color]} {self._STATES[state]}"
        elif kind == LAVA and not self.compat:
            noun = "de la lave"
        else:
            noun = self._noun(kind, color)
        side = f"{abs(right)} pas {'à droite' if right > 0 else 'à gauche'}" if right else ""
        front = f"{ahead} pas devant" if ahead else ""
        where = f"{side} et {front}" if side and front else side or front
        return f"Tu vois {noun} {where}"

    def _noun(self, kind: int, color: int) -> str:
        noun = FRENCH_NOUNS[kind]
        if noun in _MASCULINE_NOUNS and not self.compat:
            return f"un {noun} {FRENCH_MASCULINE[color]}"
        return f"une {noun} {FRENCH_FEMININE[color]}"


_LANGUAGES: Final[dict[str, type[_English] | type[_French]]] = {"en": _English, "fr": _French}


class RoomCaptioner:
    """Captions views in one language, remembering the views it has seen (at most `REMEMBERED_VIEWS`)."""

    def __init__(self, language: str = "en", compat: bool = False) -> None:
        if language not in _LANGUAGES:
            near = did_you_mean(language, _LANGUAGES)
            raise UsageError(f"There are no BabyAI captions in '{language}'; use 'en' or 'fr'.{near}")
        self._grammar = _LANGUAGES[language](compat)
        self._compat = compat
        sentences = zip(*(self._grammar.walls(distance) for distance in range(1, VIEW)), strict=True)
        self._rays = list(zip(_RAYS, sentences, strict=True))
        self._things: list[dict[bytes, str]] = [{} for _ in range(VIEW * VIEW)]
        self._remembered: dict[bytes, str] = {}

    def __call__(self, observations: NDArray[np.uint8]) -> list[str]:
        """One caption for each view. `observations`: (B, 7, 7, 3) uint8. Raises InputError for anything else."""
        views = np.asarray(observations)
        if views.shape[1:] != OBS_SHAPE or views.ndim != 4 or views.dtype != np.uint8:
            raise InputError(
                f"BabyAI captions need views of shape (B, 7, 7, 3) and type uint8, not {views.shape} of {views.dtype}; "
                "pass the raw observations of the env."
            )
        if len(views) == 0:
            return []
        keys = cast(
            "list[bytes]", np.ascontiguousarray(views).reshape(len(views), -1).view(f"V{_VIEW_BYTES}")[:, 0].tolist()
        )
        remembered = self._remembered
        captions = list(map(remembered.get, keys))
        if None in captions:
            if len(remembered) + len(keys) > REMEMBERED_VIEWS:
                remembered.clear()
            for index, (key, caption) in enumerate(zip(keys, captions, strict=True)):
                if caption is None:
                    captions[index] = remembered[key] = self._caption(key)
            if len(remembered) > REMEMBERED_VIEWS:
                remembered.clear()
        return cast("list[str]", captions)

    def _caption(self, view: bytes) -> str:
        types = view[::_CELL_BYTES]
        sentences = []
        if types[_AGENT_CELL] > EMPTY:
            kind, color, state = view[_AGENT_CELL * _CELL_BYTES : (_AGENT_CELL + 1) * _CELL_BYTES]
            _check(kind, color, state)
            sentences.append(self._grammar.carry(kind, color))
        for ray, walls in self._rays:
            cells = types[ray]
            nearest = cells.find(WALL)
            if nearest >= 0 and not (self._compat and 0 <= cells.translate(_IS_THING_OR_WALL).find(1) < nearest):
                sentences.append(walls[nearest])
        things = types.translate(_IS_THING)
        cell = things.find(1)
        while cell >= 0:
            if cell != _AGENT_CELL:
                triple = view[cell * _CELL_BYTES : (cell + 1) * _CELL_BYTES]
                sentences.append(self._things[cell].get(triple) or self._describe(cell, triple))
            cell = things.find(1, cell + 1)
        if not sentences:
            return "" if self._compat else f"{self._grammar.nothing}."
        return ". ".join(sentences) + "."

    def _describe(self, cell: int, triple: bytes) -> str:
        kind, color, state = triple
        _check(kind, color, state)
        x, y = divmod(cell, VIEW)
        sentence = self._grammar.thing(kind, color, state, x - AGENT_X, AGENT_Y - y)
        self._things[cell][triple] = sentence
        return sentence


def _check(kind: int, color: int, state: int) -> None:
    if not (WALL < kind <= LAVA and color < len(COLOR_NAMES) and state < len(STATE_NAMES)):
        raise InputError(
            f"A view holds the cell ({kind}, {color}, {state}), which no BabyAI env shows; "
            "pass the raw observations of the env."
        )


@lru_cache(maxsize=8)
def captioner(language: str = "en", compat: bool = False) -> Callable[[NDArray[np.uint8]], list[str]]:
    """The shared captioner of a language, "en" or "fr"; `compat` brings back the published defects."""
    return RoomCaptioner(language, compat)


def caption(observations: NDArray[np.uint8], language: str = "en", compat: bool = False) -> list[str]:
    """Caption views (B, 7, 7, 3) uint8; the list has B texts."""
    return captioner(language, compat)(observations)
