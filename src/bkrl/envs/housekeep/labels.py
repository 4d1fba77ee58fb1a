"""Where things belong: the label rule of Housekeep, and what a place is worth by the votes.

A type of receptacle counts in a layout if some receptacle has exactly its name. An object is right on a receptacle if a
type that counts has at least six positive votes for it and the type's name is a part of the receptacle's: the votes of
"kitchen-bottom_cabinet" hold for "kitchen-bottom_cabinet_no_top" too, where the kitchen has both.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.envs.housekeep.tables import ANNOTATORS, RIGHT_VOTES, Scene, scene, scene_names, votes, words


class HouseLabels(NamedTuple):
    """What the votes say of each of R receptacles and O classes in one layout of a scene.

    Attributes:
        present: (R,) bool.
        right: (R, O) bool, where things belong; an absent receptacle is never right.
        soft: (R, O) float64, the share of positive votes under the receptacle's exact name, 0 without.
        quality: (R, O) float64, the mean of 1 / rank over those who gave a positive one, 0 without.
        type_of: (R,) the annotated type of exactly its name, -1 where there is none.
    """

    present: NDArray[np.bool_]
    right: NDArray[np.bool_]
    soft: NDArray[np.float64]
    quality: NDArray[np.float64]
    type_of: NDArray[np.int64]


@cache
def labels(name: str, reduced: bool = False) -> HouseLabels:
    """The labels of a scene, in its full or its reduced layout."""
    known, said = scene(name), votes()
    present = ~(known.dropped & reduced)
    number = {kind: t for t, kind in enumerate(said.types)}
    type_of = np.array([number.get(kind, -1) for kind in known.kinds])
    exact = (type_of >= 0)[:, None]
    given = np.where(said.ranks > 0, said.ranks, np.inf)
    quality = (1 / given).sum(-1) / np.maximum(1, (said.ranks > 0).sum(-1))
    return HouseLabels(
        present,
        right_places(known, present),
        np.where(exact, said.positive[type_of] / ANNOTATORS, 0.0),
        np.where(exact, quality[type_of], 0.0),
        type_of,
    )


def right_places(known: Scene, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(R, O) bool: the rule above, for the receptacles that are present (R,)."""
    said = votes()
    here = {kind for kind, is_here in zip(known.kinds, present, strict=True) if is_here}
    counting = [(t, kind) for t, kind in enumerate(said.types) if kind in here]
    right = np.zeros((len(known.kinds), len(said.objects)), bool)
    for r, kind in enumerate(known.kinds):
        for t, name in counting:
            if present[r] and name in kind:
                right[r] |= said.positive[t] >= RIGHT_VOTES
    return right


@cache
def holders(name: str) -> NDArray[np.bool_]:
    """(R,) bool: the receptacles of a scene that things can be put on.

    These carry votes by the rule above, and their footprint and height are known.
    """
    known, said = scene(name), votes()
    voted = [any(kind in own for kind in said.types) for own in known.kinds]
    return np.array(voted) & ~np.isnan(known.half[:, 0]) & ~np.isnan(known.top)


def truth(house: str = "") -> dict[tuple[str, str], bool]:
    """Each thing and place in the words of captions, and whether people put it there.

    Args:
        house: a scene, whose places take votes by the label rule of its full layout; "" for all kinds of places of
            all houses, right where they are in some house.
    """
    said = votes()
    things = [words(name) for name in said.objects]
    rows: dict[str, NDArray[np.bool_]] = {}
    if not house:
        rows = {words(kind.replace("-", " ")): said.positive[t] >= RIGHT_VOTES for t, kind in enumerate(said.types)}
    for name in [house] if house else scene_names():
        known, right = scene(name), labels(name).right
        for r in np.flatnonzero(holders(name)).tolist():
            rows[known.shown[r]] = rows.get(known.shown[r], right[r]) | right[r]
    return {(thing, place): bool(row[o]) for place, row in rows.items() for o, thing in enumerate(things)}
