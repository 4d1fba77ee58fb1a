"""Two disjoint sets of tasks and seeds: settings are chosen on the first, claims are made on the second.

A task or seed that a setting was chosen on says nothing of its worth elsewhere. docs/studies.md has the rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bkrl.core.errors import UsageError


@dataclass(frozen=True)
class TaskSet:
    """One of the two sets.

    Attributes:
        name: "first" or "second".
        use: what it is for, as a report says it.
        tasks: env ids; their options do not matter.
        seeds: of training and of datasets, as a person writes them.
        least, most: the smallest and the largest of these seeds.
    """

    name: str
    use: str
    tasks: tuple[str, ...]
    seeds: str
    least: int
    most: float

    def has_task(self, env: str) -> bool:
        """Whether an env, with or without options, is one of its tasks."""
        return env.partition("@")[0] in self.tasks

    def has_seed(self, seed: int) -> bool:
        """Whether a seed is one of its own."""
        return self.least <= seed <= self.most


FIRST: Final = TaskSet(
    "first",
    "settings are chosen here, so what is best here is no claim",
    (
        "Crafter-Text-PlaceCraftingTable",
        "Crafter-Text-MakeWoodPickAxe",
        "Crafter-Text-CollectStone",
        "Crafter-Text-PlaceFurnace",
        "MiniGrid-DoorKey-6x6-v0",
        "MiniGrid-DoorKey-8x8-v0",
        "MiniGrid-KeyCorridorS3R1-v0",
        "MiniGrid-KeyCorridorS3R2-v0",
        "MiniGrid-MultiRoom-N2-S4-v0",
        "MiniGrid-MultiRoom-N4-S5-v0",
        "BabyAI-Unlock-v0",
        "BabyAI-Text-GoToLocal-RedBall-S20",
    ),
    "101 and above",
    101,
    float("inf"),
)
SECOND: Final = TaskSet(
    "second",
    "claims are made here, once; no setting may be chosen by these figures",
    (
        "Crafter-Text-MakeStonePickaxe", "Crafter-Text-CollectCoal", "Crafter-Text-CollectIron",
        "Crafter-Text-EatPlant", "CrafterReward-v1", "MiniGrid-DoorKey-16x16-v0", "MiniGrid-UnlockPickup-v0",
        "MiniGrid-KeyCorridorS3R3-v0", "MiniGrid-KeyCorridorS4R3-v0", "MiniGrid-KeyCorridorS5R3-v0",
        "MiniGrid-KeyCorridorS6R3-v0", "MiniGrid-MultiRoom-N6-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0",
        "MiniGrid-ObstructedMaze-2Dlhb-v0", "MiniGrid-ObstructedMaze-Full-v0", "BabyAI-GoToSeqS5R2-v0",
        "BabyAI-GoToSeq-v0", "BabyAI-PutNextLocal-v0", "BabyAI-MiniBossLevel-v0", "BabyAI-BossLevel-v0",
        "BabyAI-Text-GoToLocal-PurpleBall-S20", "BabyAI-Text-GoToLocal-RedKey-S20",
    ),
    "1 to 13",
    1,
    13,
)  # fmt: skip
SETS: Final = {one.name: one for one in (FIRST, SECOND)}


def set_of(env: str, seed: int) -> str:
    """The set that both a task and a seed belong to; "" where there is none."""
    return next((one.name for one in SETS.values() if one.has_task(env) and one.has_seed(seed)), "")


def set_of_all(runs: Iterable[tuple[str, int]]) -> str:
    """The set that all (task, seed) pairs belong to; "" where they belong to none, or to several."""
    found = {set_of(env, seed) for env, seed in runs}
    return found.pop() if len(found) == 1 else ""


def check_task(name: str, env: str, where: str) -> None:
    """UsageError for a task that is not one of a set's. `where`: what asks for it, as a subject."""
    held = SETS[name]
    if not held.has_task(env):
        other = next((one.name for one in SETS.values() if one.has_task(env)), "")
        belongs = f"a task of the {other} set" if other else "in neither set"
        raise UsageError(
            f'{where} trains or plays in {env}, which is {belongs}, and the study says set = "{name}"; take one of '
            f"{', '.join(held.tasks)}."
        )


def check_seed(name: str, seed: int, where: str, key: str) -> None:
    """UsageError for a seed that is not one of a set's. `key`: of the study file, where seeds are listed."""
    held = SETS[name]
    if not held.has_seed(seed):
        raise UsageError(
            f"{where} has the seed {seed}, and the seeds of the {name} set are {held.seeds}; write {key} = "
            f"[{held.least}, …]."
        )


def check_experience(env: str, where: str) -> None:
    """UsageError for experience from a task of the second set: annotators and potentials see none of these."""
    if SECOND.has_task(env):
        raise UsageError(
            f"{where} records {env}, a task of the second set, and no annotator, program or potential may see one; "
            "collect in another env of its family."
        )
