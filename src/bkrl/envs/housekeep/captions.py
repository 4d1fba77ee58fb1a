"""Sentences for symbolic observations of Housekeep.

    You hold the lamp. The vase is on the bedroom bed. You see the kitchen fridge, the kitchen sink.       "en"
    objects: lamp, vase.receptacles: bedroom bed, kitchen fridge.you are holding: lamp.                    "ellm"

"en" says where each thing that was seen lies, as far as the agent knows, and which receptacles are in view. "ellm" is
the text observation of ELLM: all classes of things and all receptacles seen in the episode, without places. There the
order of each list came from a hash; here it is the alphabet's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.envs.housekeep import layout
from bkrl.envs.housekeep.tables import scene, scene_names, votes, words


class HouseSeen(NamedTuple):
    """One slot of things of an observation.

    Attributes:
        slot: its number.
        kind: number of its class.
        status: `layout.BEFORE`, `IN_VIEW` or `IN_HAND`.
        on: the receptacle where it was seen last, -1 for none.
    """

    slot: int
    kind: int
    status: int
    on: int


@contextmanager
def damage_is_said() -> Iterator[None]:
    """InputError for observations of other envs, and of houses, things or receptacles that there are not."""
    try:
        yield
    except (IndexError, ValueError):
        what = "An observation names a house, a thing or a receptacle that Housekeep does not have"
        raise InputError(f"{what}; the data are damaged.") from None


def things_of(observation: NDArray[np.uint8]) -> list[HouseSeen]:
    """The things that were seen, by slot, of one observation."""
    table = observation[layout.THINGS : layout.RECEPTACLES].reshape(layout.SLOTS, layout.SLOT_BYTES).tolist()
    found = []
    for slot, (low, high, status, on) in enumerate(table):
        if status != layout.UNSEEN:
            found.append(HouseSeen(slot, low + 256 * high - 1, status, on - 1))
    return found


def receptacles_of(observation: NDArray[np.uint8], least: int = layout.BEFORE) -> list[int]:
    """The receptacles that were seen in the episode; with `least` `layout.IN_VIEW` those in view."""
    found: list[int] = np.flatnonzero(observation[layout.RECEPTACLES :] >= least).tolist()
    return found


def scene_of(observation: NDArray[np.uint8]) -> str:
    """The name of the house."""
    return scene_names()[max(0, int(observation[layout.SCENE]) - 1)]


@damage_is_said()
def caption_batch(observations: NDArray[np.uint8], language: str = "en") -> list[str]:
    """(B, 294) → B captions."""
    return ["".join(ellm_sentences(one)) if language == "ellm" else _plain(one) for one in observations]


def _plain(observation: NDArray[np.uint8]) -> str:
    shown, things = scene(scene_of(observation)).shown, things_of(observation)
    held = [f"You hold the {_name(one.kind)}." for one in things if one.status == layout.IN_HAND]
    lying = [f"The {_name(one.kind)} is on the {shown[one.on]}." for one in things if one.on >= 0]
    near = sorted({shown[r] for r in receptacles_of(observation, layout.IN_VIEW)})
    view = f"You see {', '.join(f'the {name}' for name in near)}." if near else "You see nothing."
    return " ".join([*held, *sorted(lying), view])


def ellm_sentences(observation: NDArray[np.uint8]) -> Iterator[str]:
    """The up to three sentences of ELLM's text observation."""
    shown, things = scene(scene_of(observation)).shown, things_of(observation)
    kinds = sorted({_name(one.kind) for one in things})
    places = sorted({shown[r] for r in receptacles_of(observation)})
    held = [_name(one.kind) for one in things if one.status == layout.IN_HAND]
    for what, names in (("objects", kinds), ("receptacles", places), ("you are holding", held)):
        if names:
            yield f"{what}: {', '.join(names)}.".lower()


def _name(kind: int) -> str:
    if kind < 0:
        raise IndexError(kind)
    return words(votes().objects[kind])
