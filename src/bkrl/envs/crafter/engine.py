"""N Crafter envs as arrays: what the vector environment and the single one have in common."""

import hashlib
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.envs.crafter import kernels, layout
from bkrl.envs.crafter.balance import COUNTS_SHAPE
from bkrl.envs.crafter.layout import CELL, CELL_NAMES
from bkrl.envs.crafter.options import IMAGE_SHAPE, checked_length
from bkrl.envs.crafter.rules import ACHIEVEMENTS, GAMES, ITEMS, RuleSet
from bkrl.envs.crafter.state import DIRECTIONS, ENV, FIRST_ROWS, OBJECT, THE_PLAYER, rows_needed
from bkrl.envs.crafter.textures import tiles
from bkrl.envs.crafter.typed_actions import ACTION_SETS, VALID
from bkrl.envs.crafter.worldgen import empty_room
from bkrl.envs.threads import Shares

_SEEDS: Final = 2**31 - 1


class Switches(NamedTuple):
    """What the kernels need of the rules, and what they are to write."""

    base_damage: int
    full_item_fails: bool
    table_wood: int
    ends_on_success: bool
    pays: bool
    health_reward: bool
    symbolic: bool
    picture: bool


class CrafterOutputs(NamedTuple):
    """Where the kernels write, N rows each. `table_ends` says how far each env's table of objects is filled."""

    symbolic: NDArray[np.uint8]
    images: NDArray[np.uint8]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    eval_success: NDArray[np.bool_]
    action_success: NDArray[np.bool_]
    table_ends: NDArray[np.int64]


@cache
def _daylight(length: int) -> NDArray[np.float64]:
    """`Env._update_time` for steps 0..length, one value at a time as there, so that no bit differs."""
    values = np.empty(length + 1)
    for step in range(length + 1):
        progress = (step / 300) % 1 + 0.3
        values[step] = 1 - np.abs(np.cos(np.pi * progress)) ** 3
    return values


def action_table(rules: RuleSet) -> NDArray[np.int64]:
    """(A, 4) what each action is: index in `rules.VERBS`, cell it needs to face, cell and item its noun names.

    A cell of 0 and an item of -1 mean none. "chop tree" is (do, tree, tree, -1); "drink tree", which does nothing, is
    (noop, -1, tree, -1).
    """
    table = np.array([(verb, 0, 0, -1) for verb in rules.verbs])
    for row, action in zip(table, ACTION_SETS.get(rules.typed, ()), strict=False):
        row[1:3] = CELL.get(action.target, 0), CELL.get(action.noun_cell, 0)
        if action.deed not in VALID:
            row[1] = -1
        row[3] = ITEMS.index(action.noun_item) if action.noun_item else -1
    return table


class CrafterEngine:
    """N envs of one id.

    Args:
        env_id: a Crafter id.
        num_envs: N.
        observation: "symbolic", "image" or "both"; what is not asked for is not computed.
        length: actions after which an episode is truncated.
        threads: envs are split among this many threads.
    """

    def __init__(self, env_id: str, num_envs: int, observation: str, length: int, threads: int = 1) -> None:
        game = GAMES[env_id]
        self.num_envs, self.length = num_envs, checked_length(length)
        self.switches = Switches(
            game.rules.base_damage,
            game.rules.full_item_fails,
            game.rules.table_wood,
            game.rules.ends_on_success,
            game.pays,
            game.health_reward,
            observation != "image",
            observation != "symbolic",
        )
        self.envs = np.zeros(num_envs, ENV)
        self.objects = np.zeros((num_envs, FIRST_ROWS), OBJECT)
        image = IMAGE_SHAPE if self.switches.picture else (1, 1, 1)
        self.out = CrafterOutputs(
            np.zeros((num_envs, *layout.OBS_SHAPE), np.uint8),
            np.zeros((num_envs, *image), np.uint8),
            np.zeros(num_envs),
            np.zeros(num_envs, bool),
            np.zeros(num_envs, bool),
            np.zeros(num_envs, bool),
            np.zeros(num_envs, bool),
            np.zeros(num_envs, bool),
            np.zeros(num_envs, np.int64),
        )
        self.typed = bool(game.rules.typed)
        self._table = action_table(game.rules)
        self._tasks = np.array([ACHIEVEMENTS.index(name) for name in game.tasks])
        self._daylight = _daylight(self.length)
        self._fingerprint = hashlib.sha256(repr((env_id, self.length, ENV, OBJECT)).encode()).digest()
        self._shares = Shares(num_envs, threads)

    def seed(self, index: int, seed: int) -> None:
        """Count the episodes of env `index` from 1 again, with envs of `seed`."""
        self.envs["seed"][index] = hash(seed)
        self.envs["episode"][index] = 0
        self._lay_ready(index)

    def begin(self, chosen: NDArray[np.bool_]) -> None:
        """Start the next episode in the chosen envs (N,); each has a seed."""
        self._shares.run(
            lambda start, stop: kernels.begin_envs(
                self.envs, self.objects, chosen, self.switches, self._daylight, empty_room(), self.out, start, stop
            )
        )
        self.out.eval_success[chosen] = self.out.action_success[chosen] = False
        self._draw(chosen)
        for index in np.flatnonzero(chosen):
            self._lay_ready(int(index))

    def step(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> None:
        """One action, checked by the caller, in each env that does not idle."""
        missing = rows_needed(self.out.table_ends) - self.objects.shape[1]
        if missing > 0:
            more = np.zeros((self.num_envs, max(missing, self.objects.shape[1])), OBJECT)
            self.objects = np.concatenate([self.objects, more], axis=1)
        self._shares.run(
            lambda start, stop: kernels.step_envs(
                self.envs,
                self.objects,
                self._table,
                actions,
                self._tasks,
                self.switches,
                self._daylight,
                idle,
                np.empty(COUNTS_SHAPE, np.int64),
                self.out,
                start,
                stop,
            )
        )
        self._draw(~idle)

    def picture(self, index: int) -> NDArray[np.uint8]:
        """(64, 64, 3): the picture of an env as it stands. Nothing moves, the random stream included."""
        one, image = slice(index, index + 1), np.zeros((1, *IMAGE_SHAPE), np.uint8)
        kernels.draw_envs(self.envs[one], self.objects[one], np.ones(1, bool), self._daylight, tiles(), image, 0, 1)
        return image[0]

    def semantic(self, index: int) -> NDArray[np.uint8]:
        """(64, 64): crafter's map of an env, indexed [x, y]: materials, and the kind of object where one stands."""
        env = self.envs[index]
        at = env["object_at"]
        return np.where(at != 0, self.objects["kind"][index][at], env["materials"])

    def player_position(self, index: int) -> NDArray[np.int64]:
        """(2,) x and y of the player."""
        player = self.objects[index, THE_PLAYER]
        return np.array([player["x"], player["y"]], np.int64)

    def around(self, index: int) -> list[str]:
        """What lies on the eight cells around the one that the player of an env faces; less at the rim of the map."""
        step = DIRECTIONS[self.envs["facing"][index]]
        x, y = (int(at) for at in self.player_position(index) + step)
        cells = self.semantic(index)[max(0, x - 1) : x + 2, max(0, y - 1) : y + 2].copy()
        cells[min(x, 1), min(y, 1)] = 0
        return [CELL_NAMES[cell] for cell in cells.ravel() if cell]

    def holds(self, index: int, item: str) -> bool:
        """Whether the player of an env has an item."""
        return bool(self.envs["inventory"][index, ITEMS.index(item)] > 0)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Everything the future depends on, as uint8 arrays; unused rows of the object tables are left out."""
        used = max(1, int(self.envs["objects_end"].max()))
        return {
            "fingerprint": np.frombuffer(self._fingerprint, np.uint8).copy(),
            "worlds": self.envs.view(np.uint8).reshape(self.num_envs, -1).copy(),
            "objects": self.objects.view(np.uint8).reshape(self.num_envs, -1)[:, : used * OBJECT.itemsize].copy(),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot of the same id, length and N; InputError and nothing changed for any other."""
        size = (self.num_envs, ENV.itemsize)
        try:
            fingerprint, envs, objects = (np.asarray(state[key]) for key in ("fingerprint", "worlds", "objects"))
        except KeyError as missing:
            raise InputError(f"The snapshot lacks {missing}; take it with snapshot().") from None
        if fingerprint.astype(np.uint8).tobytes() != self._fingerprint:
            raise InputError(
                "The snapshot is of another Crafter env, episode length or version of bkrl; take one of these."
            )
        if envs.shape != size or len(objects) != self.num_envs or envs.dtype != np.uint8 or objects.dtype != np.uint8:
            raise InputError(f"The snapshot is of {len(envs)} envs, not {self.num_envs}; restore it into as many.")
        if objects.ndim != 2 or objects.shape[1] % OBJECT.itemsize:
            raise InputError("The snapshot's table of objects is damaged; take it again with snapshot().")
        self.envs = envs.copy().view(ENV).reshape(self.num_envs)
        rows = max(FIRST_ROWS, objects.shape[1] // OBJECT.itemsize)
        self.objects = np.zeros((self.num_envs, rows), OBJECT)
        self.objects.view(np.uint8).reshape(self.num_envs, -1)[:, : objects.shape[1]] = objects
        self.out.table_ends[:] = self.envs["objects_end"]
        kernels.observe_envs(self.envs, self.objects, self._daylight, self.out.symbolic, 0, self.num_envs)
        self._draw(np.ones(self.num_envs, bool))

    def close(self) -> None:
        self._shares.close()

    def _lay_ready(self, index: int) -> None:
        env = self.envs[index]
        # As `crafter.Env` derives it; hashes of integers are stable.
        env["next_seed"] = hash((int(env["seed"]), int(env["episode"]) + 1)) % _SEEDS

    def _draw(self, chosen: NDArray[np.bool_]) -> None:
        """The pictures of the chosen envs (N,), if pictures are asked for."""
        if self.switches.picture:
            self._shares.run(
                kernels.draw_envs, self.envs, self.objects, chosen, self._daylight, tiles(), self.out.images
            )
