"""New episodes by Housekeep's own rule, for houses whose original ones the source does not hold."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.core.seeds import generator
from bkrl.envs.housekeep.episodes import HouseEpisode, scenes_with_episodes, shipped
from bkrl.envs.housekeep.houses import house
from bkrl.envs.housekeep.labels import HouseLabels, labels
from bkrl.envs.housekeep.layout import SLOTS
from bkrl.envs.housekeep.packer import empty_tables, has_room, put_down
from bkrl.envs.housekeep.tables import RIGHT_VOTES, floor, models, scene, votes

FEWEST, MOST = 7, 10
FEWEST_MISPLACED, MOST_MISPLACED = 3, 5
REDUCED: Final = 0.25
MOST_ON_ONE: Final = 2
TRIES: Final = 50
_NEUTRAL: Final = -5.0
_SPREAD: Final = 3.0


class NoRoom(UsageError):
    """The things that were drawn do not fit into the house; others may."""


class Sampler:
    """Draws episodes of one scene.

    Args:
        name: of the scene.
        split: whose classes of objects are used.
    """

    def __init__(self, name: str, split: str = "train") -> None:
        self.scene, self.house, self.split = scene(name), house(name), split
        said = votes()
        ranks = said.ranks.astype(np.float64)
        with np.errstate(invalid="ignore"):
            self._untidy = np.where(
                said.negative >= RIGHT_VOTES, np.where(ranks < 0, ranks, 0).sum(-1) / (ranks < 0).sum(-1), _NEUTRAL
            )
            self._tidy = np.where(ranks > 0, ranks, 0).sum(-1) / np.maximum(1, (ranks > 0).sum(-1))

    def draw(self, rng: np.random.Generator, number: int, objects: Sequence[str] = ()) -> HouseEpisode:
        """One episode.

        Args:
            rng: a stream of its own.
            number: what the episode is called.
            objects: classes that are misplaced, and nothing else; none: 7–10 things, of which 3–5 are misplaced.

        Raises:
            UsageError: there is no such class, or no place for it; or one twice, or more than 10.
        """
        said = votes()
        if twice := [name for name in objects if objects.count(name) > 1]:
            raise UsageError(f"{twice[0]} is named twice; an episode has one thing of a class.")
        if len(objects) > SLOTS:
            raise UsageError(f"{len(objects)} objects are too many; an episode has at most {SLOTS} things.")
        for name in objects:
            if name not in said.objects:
                raise UsageError(f"Housekeep has no object '{name}'.{did_you_mean(name, said.objects)}")
        reduced = bool(rng.random() < REDUCED)
        known = labels(self.scene.name, reduced)
        total, wrong = int(rng.integers(FEWEST, MOST + 1)), int(rng.integers(FEWEST_MISPLACED, MOST_MISPLACED + 1))
        if objects:
            order, total, wrong = [said.objects.index(name) for name in objects], len(objects), len(objects)
        else:
            order = rng.permutation([i for i, split in enumerate(said.splits) if split == self.split]).tolist()
        chosen: list[tuple[int, int]] = []
        rows, things = empty_tables(SLOTS)
        for kind in order:
            if len(chosen) == total:
                break
            found = self._lay(rng, rows, things, known, kind, len(chosen) < wrong, [r for _, r in chosen])
            if found is not None:
                chosen.append(found)
            elif objects:
                what = "has no model" if kind not in models().object else f"finds no place in {self.scene.name}"
                raise UsageError(f"{said.objects[kind]} {what}; choose another object.")
        if len(chosen) < total:
            raise NoRoom(f"{self.scene.name} has no room for {total} objects of the split '{self.split}'.")
        x, z = start_of(self.scene.name)
        models_, receptacles = zip(*chosen, strict=True)
        yaw, seen = float(rng.integers(360)), self.split == "train"
        return HouseEpisode(
            self.scene.name, self.split, number, seen, reduced, (x, z, yaw), models_, receptacles, wrong, 0
        )

    def _lay(
        self,
        rng: np.random.Generator,
        rows: NDArray[Any],
        things: NDArray[Any],
        known: HouseLabels,
        kind: int,
        wrong: bool,
        taken: list[int],
    ) -> tuple[int, int] | None:
        """A model of the class, laid where it may start, and its receptacle; None where there is no place."""
        usable = self.house.usable & known.present
        right, mine = known.right[:, kind], np.flatnonzero(models().object == kind)
        types = np.unique(known.type_of[known.present & (known.type_of >= 0)])
        good = votes().positive[types, kind] >= RIGHT_VOTES
        if not len(mine) or not good.any() or good.all():
            return None
        model = int(rng.choice(mine))
        size = model_sizes()[model]
        if wrong:
            candidates = types[~good]
            weights = np.exp(self._untidy[candidates, kind] / _SPREAD)
            order = rng.choice(candidates, len(candidates), replace=False, p=weights / weights.sum())
        else:
            order = types[good][np.argsort(self._tidy[types[good], kind], kind="stable")]
        instances = [int(r) for t in order for r in np.flatnonzero(usable & (known.type_of == t) & (right != wrong))]
        goals = np.flatnonzero(usable & right).tolist()
        for r in instances[:TRIES]:
            if taken.count(r) >= MOST_ON_ONE:
                continue
            if wrong and not any(has_room(rows, things, g, self.house.half[g], size) for g in goals):
                continue
            slot, own = len(taken), self.house
            if put_down(rows, things, slot, model, r, own.base[r], own.half[r], own.top[r], size):
                return model, r
        return None


def model_sizes() -> NDArray[np.float64]:
    """(M, 3) long and short side of the footprint, and height, of each model."""
    return np.stack([models().long, models().short, models().height], 1)


def start_of(name: str) -> tuple[float, float]:
    """Where episodes of a scene begin: as in the original ones, otherwise in the middle of the largest polygon."""
    if name in scenes_with_episodes():
        return shipped(name)[0].start[:2]
    ground = floor(name)
    corners = [ground.corners[p, : ground.sides[p]] for p in np.flatnonzero(ground.main)]
    areas = [_area(own) for own in corners]
    x, z = corners[int(np.argmax(areas))].mean(0)
    return float(x), float(z)


def _area(corners: NDArray[np.float64]) -> float:
    x, z = corners.T
    return abs(float(x @ np.roll(z, -1) - z @ np.roll(x, -1))) / 2


def draw_episodes(name: str, split: str, count: int, seed: int, objects: Sequence[str] = ()) -> list[HouseEpisode]:
    """`count` episodes; each has a stream of its own, so that more of them do not change the first ones."""
    sampler = Sampler(name, split)
    return [_drawn(sampler, seed, i, objects) for i in range(count)]


def _drawn(sampler: Sampler, seed: int, number: int, objects: Sequence[str]) -> HouseEpisode:
    """Episode `number`, drawn again from another stream where the things did not fit into the house."""
    parts = ("housekeep", sampler.scene.name, sampler.split, number)
    for attempt in range(TRIES):
        try:
            return sampler.draw(generator(seed, *parts, *([attempt] if attempt else [])), number, objects)
        except NoRoom:
            continue
    raise UsageError(
        f"{sampler.scene.name} had no room for an episode of the split '{sampler.split}' in {TRIES} draws; choose "
        "another --scene, --split or --seed."
    )
