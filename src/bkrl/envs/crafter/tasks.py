"""Tasks in typed Crafter: what must be done, by which sub-goals, and when it counts.

The sub-goals of a task are found from the rule tables: a stone pickaxe takes three wood, so "chop tree" stands there
three times. (The release lists two; its lists cannot be carried out as they stand.)
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.envs.crafter.rules import COLLECT, GAMES, MAKE, PLACE, TYPED
from bkrl.envs.crafter.typed_actions import ACTION_SETS, EASIER, PLAIN_VERBS, SYNONYMS, synonyms

SUBGOALS: Final = ("hidden", "shown", "paid")
"""hidden: the mission is the task, which is paid when done. shown: the mission is the sub-goal at hand, and the last
one is paid. paid: every sub-goal is paid."""

SURVIVAL_REWARD: Final = 0.05

Around = Callable[[int], Sequence[str]]
"""Env → names of what lies on the eight cells around the faced one, as in `layout.CELL_NAMES`."""


@dataclass(frozen=True)
class TypedTask:
    """One task.

    Attributes:
        name: what the mission says.
        subgoals: deeds in order; the last one completes the task. Empty: the task is to stay alive.
        ordered: the sub-goals must be done in this order even where they are hidden.
        beside: the last deed counts only next to such a cell, a name of `layout.CELL_NAMES`; "" for no such rule.
        holding: the last deed counts only while this item is held; "" for no such rule.
    """

    name: str
    subgoals: tuple[str, ...]
    ordered: bool = False
    beside: str = ""
    holding: str = ""


_GATHERED: Final = {
    item: f"{'chop' if item in ('wood', 'sapling') else 'mine'} {material}"
    for material, (_, item, _) in COLLECT.items()
}
_STATIONS: Final = {"table": "place crafting table", "furnace": "place furnace"}


def needs(deed: str, table_wood: int = TYPED["harder"].table_wood) -> dict[str, int]:
    """The deeds that must come before this one, and how much of what each yields it uses up: the tech tree's row.

    "make wood pickaxe" → {"place crafting table": 0, "chop tree": 1}: the table stays.
    """
    verb, _, noun = deed.partition(" ")
    if deed == "eat plant":
        return {"place plant": 1}
    if verb in ("mine", "chop"):
        tool = COLLECT[noun][0]
        return {f"make {tool.replace('_', ' ')}": 0} if tool else {}
    if deed == _STATIONS["table"]:
        return {_GATHERED["wood"]: table_wood}
    used, near = MAKE[noun.replace(" ", "_")] if verb == "make" else (PLACE[noun][0] if verb == "place" else {}, ())
    return {_STATIONS[station]: 0 for station in near} | {_GATHERED[item]: amount for item, amount in used.items()}


def composition(*deeds: str, table_wood: int = TYPED["harder"].table_wood) -> tuple[str, ...]:
    """The deeds that lead to some from empty hands, each as often as its yield is used, and at least once.

    "make wood pickaxe" → chop tree, chop tree, place crafting table, make wood pickaxe.
    """
    order: list[str] = []

    def require(one: str) -> None:
        if one not in order:
            for earlier in needs(one, table_wood):
                require(earlier)
            order.append(one)

    for deed in deeds:
        require(SYNONYMS.get(deed, deed))
    used: Counter[str] = Counter()
    for one in order:
        used.update(needs(one, table_wood))
    return tuple(one for step in order for one in [step] * max(1, used[step]))


_CUSTOM: Final = (
    TypedTask("plant row", ("chop grass", "place plant", "chop grass", "place plant"), beside="plant"),
    TypedTask("make workshop", (*["chop tree", "place crafting table"] * 2,), beside="table"),
    TypedTask("deforestation", ("chop tree",) * 5, ordered=True),
    TypedTask("vegetarianism", ("drink water", "chop grass"), ordered=True),
    TypedTask(
        "chop grass with wood pickaxe", (*composition("make wood pickaxe"), "chop grass"), holding="wood_pickaxe"
    ),
    TypedTask("work and sleep", ("chop tree", "sleep", "place crafting table"), ordered=True),
    TypedTask("gardening", ("chop grass", "chop tree", "place plant"), ordered=True),
    TypedTask("wilderness survival", ("sleep", "chop grass", "attack zombie"), ordered=True),
    TypedTask("survival", ()),
)  # fmt: skip
_SINGLE: Final = (TypedTask(deed, composition(deed)) for deed in EASIER if deed not in PLAIN_VERBS[:5])
TASKS: Final = {task.name: task for task in (*_SINGLE, *_CUSTOM)}
"""The tasks by name: one for each deed, and the composed ones of the release."""


class TaskTracker:
    """How far N envs have come with a task.

    Args:
        task: what is to be done.
        num_envs: N.
        deeds: (A,) what each action does, see `TypedAction.deed`.
        subgoals: one of `SUBGOALS`.

    Attributes:
        reached: (N,) sub-goals done in the running episodes; the last one is not counted.
    """

    def __init__(
        self,
        task: TypedTask,
        num_envs: int,
        deeds: Sequence[str],
        subgoals: Literal["hidden", "shown", "paid"] | str = "hidden",
    ) -> None:
        if subgoals not in SUBGOALS:
            near = did_you_mean(str(subgoals), SUBGOALS)
            raise UsageError(f"Sub-goals cannot be '{subgoals}'.{near} Use one of {', '.join(SUBGOALS)}.")
        self.task, self.subgoals = task, subgoals
        self.reached = np.zeros(num_envs, np.int64)
        counted = [[deed in synonyms(goal) for deed in deeds] for goal in task.subgoals]
        self._counts = np.array(counted, bool).reshape(len(task.subgoals), len(deeds))  # (G, A)

    def begin(self, chosen: NDArray[np.bool_]) -> None:
        """New episodes in these envs (N,)."""
        self.reached[chosen] = 0

    def update(
        self,
        actions: NDArray[np.int64],
        strict: NDArray[np.bool_],
        acting: NDArray[np.bool_],
        around: Around,
        holds: Callable[[int, str], bool],
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """What one step of N envs brings.

        Args:
            actions: (N,).
            strict: (N,) whether the game did what was asked (`eval_success`).
            acting: (N,) the envs that took a step and are alive.
            around: what lies around the faced cell of an env.
            holds: whether an env's player has an item.

        Returns:
            (N,) rewards, (N,) whether the task is done, (N,) whether another sub-goal is at hand now.
        """
        if not self.task.subgoals:
            return np.where(acting, SURVIVAL_REWARD, 0.0), np.zeros(len(actions), bool), np.zeros(len(actions), bool)
        last = len(self.task.subgoals) - 1
        in_order = self.task.ordered or self.subgoals != "hidden"
        goals = self.reached if in_order else np.full(len(actions), last)
        hits = strict & acting & self._counts[goals, actions]
        final = hits & (goals == last)
        for i in np.flatnonzero(final).tolist():
            beside, holding = self.task.beside, self.task.holding
            final[i] = (not beside or beside in around(i)) and (not holding or holds(i, holding))
        advanced = hits & (goals < last) & in_order
        self.reached[advanced] += 1
        paid = final | advanced if self.subgoals == "paid" else final
        return paid.astype(np.float64), final, advanced & (self.subgoals != "hidden")

    def mission(self, index: int) -> str:
        """What an env is asked for now."""
        if self.subgoals == "hidden" or not self.task.subgoals:
            return self.task.name
        return self.task.subgoals[self.reached[index]]


def tracker_of(env_id: str, num_envs: int, subgoals: str) -> TaskTracker | None:
    """The tracker of an id that is a typed task; None for other ids, which know no sub-goals (UsageError)."""
    game = GAMES[env_id]
    if not game.task:
        if subgoals != "hidden":
            raise UsageError(f"'{env_id}' has no sub-goals; leave the option out.")
        return None
    deeds = [action.deed for action in ACTION_SETS[game.rules.typed]]
    return TaskTracker(TASKS[game.task], num_envs, deeds, subgoals)
