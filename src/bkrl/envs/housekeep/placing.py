"""Housekeep as those see it who set goals: which thing lies where, read off the symbols, and what is right.

A place is a kind of receptacle by the name that captions use: five top cabinets of a kitchen are one place.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.family import Placed
from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.labels import holders, labels
from bkrl.envs.housekeep.state import FAILED, PICKED, PLACED
from bkrl.envs.housekeep.tables import scene, scene_names, votes, words


@cache
def places() -> tuple[str, ...]:
    """The names of all places in all houses, sorted."""
    return tuple(sorted({scene(name).shown[r] for name in scene_names() for r in np.flatnonzero(holders(name))}))


@cache
def _tables() -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(S, 128) the place of each receptacle, -1 for none; (S, P, O) whether things are right in a place."""
    names, known = scene_names(), {name: p for p, name in enumerate(places())}
    place_of = np.full((len(names), layout.MOST_RECEPTACLES), -1)
    right = np.zeros((len(names), len(known), len(votes().objects)), bool)
    for s, name in enumerate(names):
        for r in np.flatnonzero(holders(name)).tolist():
            place_of[s, r] = known[scene(name).shown[r]]
            right[s, place_of[s, r]] |= labels(name).right[r]
    return place_of, right


class Places:
    """See `family.TidyGoalSpace`. `house`: the scene of an env that has one."""

    slots = layout.SLOTS

    def __init__(self, house: str = "") -> None:
        self.house = house
        self.things = tuple(words(name) for name in votes().objects)
        self.places = places()

    def read(self, symbols: NDArray[np.uint8]) -> Placed:
        place_of, right = _tables()
        N, n = len(symbols), np.arange(len(symbols))
        house = np.maximum(0, symbols[:, layout.SCENE].astype(np.int64) - 1)
        slots = symbols[:, layout.THINGS : layout.RECEPTACLES].reshape(N, layout.SLOTS, layout.SLOT_BYTES)
        things = slots[..., layout.CLASS_LOW] + 256 * slots[..., layout.CLASS_HIGH].astype(np.int64) - 1
        status, on = slots[..., layout.STATUS], slots[..., layout.ON].astype(np.int64) - 1
        there = place_of[house]  # (N, 128)
        place = np.where((on < 0) | (status == layout.IN_HAND), -1, np.take_along_axis(there, np.maximum(on, 0), 1))
        held = symbols[:, layout.HELD].astype(np.int64) - 1
        seen = np.zeros((N, len(self.places) + 1), bool)  # the last column is that of no place
        rows, cols = np.nonzero(symbols[:, layout.RECEPTACLES :])
        seen[rows, there[rows, cols]] = True
        seen = seen[:, :-1]
        wrong = (things >= 0) & (place >= 0)
        wrong &= ~right[house[:, None], np.maximum(place, 0), np.maximum(things, 0)]
        belongs = seen & (held >= 0)[:, None] & right[house, :, np.maximum(things[n, held], 0)]
        return Placed(things, status == layout.IN_VIEW, place, held, seen, np.concatenate([wrong, belongs], 1), house)

    def done(self, infos: Mapping[str, Any], before: Placed) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        place_of, _ = _tables()
        deed, kind = np.asarray(infos["deed"]), np.asarray(infos["deed_thing"])
        is_it = (before.things == kind[:, None]) & (kind >= 0)[:, None]  # no class comes twice in an episode
        slot = np.where(is_it.any(1), is_it.argmax(1), -1)
        place = place_of[before.house, np.maximum(0, infos["deed_place"])]
        put = np.where(place >= 0, layout.SLOTS + place, -1)
        return np.where(deed == PICKED, slot, np.where(deed == PLACED, put, -1)), deed == FAILED


class Described:
    """What `layout_housekeep.md` is filled in with: the numbers of `layout`, and the names behind them."""

    def __getattr__(self, name: str) -> Any:
        return vars(layout)[name]

    @property
    def things(self) -> list[str]:
        """Classes of things, in order."""
        return [words(name) for name in votes().objects]

    @property
    def places(self) -> list[str]:
        """Kinds of receptacles, in order."""
        return list(places())

    @property
    def houses(self) -> list[list[int]]:
        """The kinds of each house's receptacles."""
        place_of, _ = _tables()
        return [row[: len(scene(name).keys)].tolist() for name, row in zip(scene_names(), place_of, strict=True)]
