"""Is the engine the game? Play the reference and the engine side by side and compare everything after every step.

    python -m tests.envs.equality_crafter --steps 500000

Compared: both observations, reward, terminated, truncated, every entry of `info` (inventory, achievements, semantic
map, …), the random stream, and now and then the caption, every object with its health, and the player's counters.

Random play dies young and sees little of the game, so half of the seeds are staged: the same things are put into both
envs (tools, ripe plants, a dungeon, lava, nightfall, …) and a bot that acts on what it faces plays on from there.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from bkrl.core.jit import Int, kernel
from bkrl.envs import env_spec
from bkrl.envs.crafter import captions, layout, rules
from bkrl.envs.crafter.layout import CELL, CELL_NAMES
from bkrl.envs.crafter.player import PLANT_HEALTH, RIPE_AGE
from bkrl.envs.crafter.reference import CrafterEnv as ReferenceEnv
from bkrl.envs.crafter.rules import ACHIEVEMENTS, AREA, GAMES, ITEMS
from bkrl.envs.crafter.state import (
    ARROW,
    HEALTH,
    NOTHING,
    PLANT,
    PLAYER,
    PLAYER_WALKABLE_SET,
    THE_PLAYER,
    add,
    move,
    remove,
    set_material,
)
from bkrl.envs.crafter.typed_actions import ACTION_SETS
from bkrl.envs.crafter.vector import CrafterVectorEnv
from bkrl.envs.crafter.worldgen import COW_HEALTH, SKELETON_HEALTH, ZOMBIE_HEALTH
from bkrl.envs.single import SingleEnv

_LOOK_CLOSELY_EVERY: Final = 10
_SURROUNDINGS: Final = 3
_HEALTH_OF: Final = {"cow": COW_HEALTH, "zombie": ZOMBIE_HEALTH, "skeleton": SKELETON_HEALTH, "plant": PLANT_HEALTH}


class Mismatch(AssertionError):
    """The engine and the reference disagree; the message tells where, and both sides."""


@kernel
def _inject_material(envs: Any, x: Int, y: Int, material: Int) -> None:
    set_material(envs[0], x, y, material)


@kernel
def _inject_object(envs: Any, objects: Any, kind: Int, x: Int, y: Int, health: Int, timer: Int) -> None:
    add(envs[0], objects[0], kind, x, y, health, timer)


@kernel
def _inject_removal(envs: Any, objects: Any, x: Int, y: Int) -> None:
    remove(envs[0], objects[0], np.int64(envs[0].object_at[x, y]))


@kernel
def _inject_move(envs: Any, objects: Any, dx: Int, dy: Int) -> None:
    move(envs[0], objects[0], THE_PLAYER, dx, dy, PLAYER_WALKABLE_SET)


class Pair:
    """The reference and the engine in the same state.

    Args:
        env_id: a Crafter id.
        seed: of both.
        length: actions after which an episode is truncated.
    """

    def __init__(self, env_id: str, seed: int, length: int = rules.MAX_STEPS) -> None:
        self.env_id, self.seed_given = env_id, seed
        self.reference = ReferenceEnv(env_spec(env_id), "both", length)
        self.vector = CrafterVectorEnv(env_spec(env_id), 1, "both", length)
        self.native = SingleEnv(self.vector, "rgb_array")
        self.history = f"{env_id} seed {seed}"
        self._compare_first(self.reference.reset(seed=seed), self.native.reset(seed=seed))

    def begin(self) -> None:
        """The next episode of the seed."""
        self.history += "; reset"
        self._compare_first(self.reference.reset(), self.native.reset())

    def step(self, action: int) -> bool:
        """One action in both, everything compared. True where the episode ended."""
        expected, actual = self.reference.step(action), self.native.step(action)
        self.observation, self.info = expected[0], expected[-1]
        self.steps = self.reference.game._step
        for name, ours, theirs in zip(("reward", "terminated", "truncated"), actual[1:4], expected[1:4], strict=True):
            self._same(name, ours, theirs)
        self._compare(expected[0], actual[0], expected[-1], actual[-1])
        return bool(expected[2] or expected[3])

    def _compare_first(self, expected: Any, actual: Any) -> None:
        self.observation, self.info = expected
        self.steps = 0
        self._compare(expected[0], actual[0], expected[1], actual[1])
        self.compare_closely()

    def _compare(self, obs: Any, our_obs: Any, info: dict[str, Any], our_info: dict[str, Any]) -> None:
        for key in ("symbolic", "image"):
            self._same(key, our_obs[key], obs[key])
        self._same("info keys", sorted(our_info), sorted(info))
        for key in info:
            self._same(key, our_info[key], info[key])
        _, words, position = self.reference.game._world.random.get_state()[:3]
        self._same("random stream", self.vector.engine.envs["mt"][0], words)
        self._same("place in the random stream", int(self.vector.engine.envs["mt_pos"][0]), int(position))
        if self.steps % _LOOK_CLOSELY_EVERY == 0:
            self.compare_closely()

    def compare_closely(self) -> None:
        """Every object in its order, the player's hidden counters, the frame and the caption."""
        player, me = self.reference.game._player, self.vector.engine.envs[0]
        for counter in ("hunger", "thirst", "fatigue", "recover"):
            self._same(counter, float(me[counter]), float(getattr(player, f"_{counter}")))
        table = self.vector.engine.objects[0, : me["objects_end"]]
        ours = [(CELL_NAMES[t["kind"]], int(t["x"]), int(t["y"])) for t in table if t["kind"] != NOTHING]
        things = self.reference.game._world.objects
        self._same(
            "objects",
            ours,
            [(type(t).__name__.strip("_").lower().removeprefix("typed"), *map(int, t.pos)) for t in things],
        )
        self._same(
            "health of objects",
            [int(t["health"]) for t in table if t["kind"] not in (NOTHING, PLAYER)],
            [int(t.health) for t in things[1:]],
        )
        self._same("frame", self.native.render(), self.reference.render())
        native = self.vector.engine.out.symbolic
        self._same(
            "caption", captions.caption_batch(native), captions.caption_batch(self.observation["symbolic"][None])
        )

    def _same(self, what: str, ours: Any, theirs: Any) -> None:
        if not np.array_equal(ours, theirs):
            game = self.reference.game
            raise Mismatch(
                f"{self.history}, step {self.steps}: {what} differs\nengine:    {ours}\nreference: {theirs}\n"
                f"engine:    {captions.caption_batch(self.vector.engine.out.symbolic)[0]}\n"
                f"reference: {captions.caption_batch(game.symbolic(game.semantic())[None])[0]}"
            )

    # What can be put into both envs

    @property
    def position(self) -> tuple[int, int]:
        """(x, y) of the player."""
        x, y = self.reference.game._player.pos
        return int(x), int(y)

    def set_item(self, name: str, amount: int) -> None:
        """Hold this many of an item."""
        self.reference.game._player.inventory[name] = amount
        self.vector.engine.envs["inventory"][0, ITEMS.index(name)] = amount

    def set_steps(self, steps: int) -> None:
        """Move the clock, and with it the sun."""
        self.reference.game._step = self.steps = steps
        self.vector.engine.envs["steps"][0] = steps

    def fall_asleep(self) -> None:
        """Asleep from now on."""
        self.reference.game._player.sleeping = True
        self.vector.engine.envs["sleeping"][0] = 1

    def move_player(self, x: int, y: int) -> None:
        """Put the player on a free cell."""
        old_x, old_y = self.position
        self.clear(x, y, "grass")
        self.reference.game._world.move(self.reference.game._player, np.array([x, y]))
        _inject_move(self.vector.engine.envs, self.vector.engine.objects, x - old_x, y - old_y)

    def clear(self, x: int, y: int, material: str) -> bool:
        """Lay a material, take away who stands there. False outside the map and under the player."""
        if not (0 <= x < AREA and 0 <= y < AREA) or (x, y) == self.position:
            return False
        world = self.reference.game._world
        if world[x, y][1] is not None:
            world.remove(world[x, y][1])
            _inject_removal(self.vector.engine.envs, self.vector.engine.objects, x, y)
        world[x, y] = material
        _inject_material(self.vector.engine.envs, x, y, CELL[material])
        return True

    def put(self, kind: str, x: int, y: int, ground: str = "grass", age: int = 0) -> None:
        """A cow, zombie, skeleton or plant (of some age) on a cell."""
        from crafter import objects

        if not self.clear(x, y, ground):
            return
        game = self.reference.game
        if kind in ("zombie", "skeleton"):
            thing = getattr(objects, kind.capitalize())(game._world, (x, y), game._player)
        else:
            thing = getattr(objects, kind.capitalize())(game._world, (x, y))
        if kind == "plant":
            thing.grown = age
        game._world.add(thing)
        engine = self.vector.engine
        _inject_object(engine.envs, engine.objects, CELL[kind], x, y, _HEALTH_OF[kind], age)


Stage = Callable[[Pair, np.random.Generator], None]


def _around(pair: Pair, reach: int = _SURROUNDINGS) -> list[tuple[int, int]]:
    x, y = pair.position
    return [(x + i, y + j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1) if (i, j) != (0, 0)]


def _nothing(pair: Pair, rng: np.random.Generator) -> None:
    del pair, rng


def _craftsman(pair: Pair, rng: np.random.Generator) -> None:
    for item in ("wood", "stone", "coal", "iron", "sapling"):
        pair.set_item(item, int(rng.integers(4, 10)))


def _miner(pair: Pair, rng: np.random.Generator) -> None:
    for item in ITEMS[ITEMS.index("wood_pickaxe") :]:
        pair.set_item(item, int(rng.integers(0, 2)))
    pair.set_item("iron_pickaxe", 1)
    for x, y in _around(pair):
        if rng.random() < 0.7:
            pair.clear(x, y, str(rng.choice(["stone", "coal", "iron", "diamond", "tree", "table", "furnace", "water"])))


def _starving(pair: Pair, rng: np.random.Generator) -> None:
    for item in ("food", "drink", "energy"):
        pair.set_item(item, int(rng.integers(0, 2)))
    pair.set_item("health", int(rng.integers(2, 5)))


def _night(pair: Pair, rng: np.random.Generator) -> None:
    pair.set_steps(int(rng.integers(140, 200)))
    pair.set_item("energy", int(rng.integers(0, 8)))
    if rng.random() < 0.7:
        pair.fall_asleep()


def _besieged(pair: Pair, rng: np.random.Generator) -> None:
    for x, y in _around(pair):
        if rng.random() < 0.2:
            pair.put("zombie", x, y)
    if rng.random() < 0.5:
        _night(pair, rng)


def _dungeon(pair: Pair, rng: np.random.Generator) -> None:
    for x, y in _around(pair, 6):
        pair.clear(
            x, y, str(rng.choice(["path", "path", "path", "path", "table", "furnace", "stone", "water", "lava"]))
        )
    for x, y in _around(pair, 5):
        if rng.random() < 0.08:
            pair.put("skeleton", x, y, "path")


def _volcano(pair: Pair, rng: np.random.Generator) -> None:
    for x, y in _around(pair, 5):
        if rng.random() < 0.15:
            pair.clear(x, y, "lava")


def _garden(pair: Pair, rng: np.random.Generator) -> None:
    for x, y in _around(pair):
        if rng.random() < 0.3:
            pair.put("plant", x, y, age=int(rng.choice([0, 150, RIPE_AGE - 5, RIPE_AGE + 1])))
        elif rng.random() < 0.15:
            pair.put(str(rng.choice(["cow", "zombie"])), x, y)
    pair.set_item("food", 3)
    pair.set_item("sapling", 5)


def _at_the_edge(pair: Pair, rng: np.random.Generator) -> None:
    x, y = int(rng.choice([0, 1, AREA - 1])), int(rng.choice([0, 1, int(rng.integers(AREA)), AREA - 1]))
    pair.move_player(x, y)
    _craftsman(pair, rng)


STAGES: Final[dict[str, Stage]] = {
    "nothing": _nothing,
    "craftsman": _craftsman,
    "miner": _miner,
    "starving": _starving,
    "night": _night,
    "besieged": _besieged,
    "dungeon": _dungeon,
    "volcano": _volcano,
    "garden": _garden,
    "edge": _at_the_edge,
}


def bot(symbolic: Any, rule_set: rules.RuleSet, rng: np.random.Generator) -> int:
    """An action: random a third of the time, else what the faced cell suggests."""
    verbs = tuple(rules.VERBS[i] for i in rule_set.verbs)
    if rng.random() < 0.35:
        return int(rng.integers(len(verbs)))
    faced = CELL_NAMES[symbolic[layout.FACED_CELL[symbolic[layout.FACING]]]].removeprefix("ripe_")
    named = [i for i, action in enumerate(ACTION_SETS.get(rule_set.typed, ())) if faced in action.name]
    if named and rng.random() < 0.7:
        return int(rng.choice(named))
    if faced not in ("grass", "sand", "path", "outside", "lava", "plant"):
        return int(rng.choice([i for i, verb in enumerate(verbs) if verb == "do"]))
    held = {name for name in ITEMS if symbolic[layout.INDEX[name]] > 0}
    wishes = [verb for verb in verbs if verb.startswith("make_") and verb[5:] not in held]
    wishes += [f"place_{thing}" for thing in ("stone", "table", "furnace")] if "stone" in held or "wood" in held else []
    wishes += ["place_plant"] if "sapling" in held else []
    if wishes and rng.random() < 0.4:
        return verbs.index(str(rng.choice(wishes)))
    if faced == "plant" and rng.random() < 0.7:
        return 0
    return verbs.index(str(rng.choice(["move_left", "move_right", "move_up", "move_down", "do", "sleep"])))


def _cause_of_death(pair: Pair) -> str:
    game = pair.reference.game
    if game._world[game._player.pos][0] == "lava":
        return "lava"
    if min(game._player.inventory[name] for name in ("food", "drink", "energy")) == 0:
        return "hunger, thirst or fatigue"
    near = {CELL_NAMES[cell] for cell in pair.observation["symbolic"][layout.VIEW]}
    return "zombies or arrows" if near & {"zombie", "skeleton", "arrow"} else "other"


def play(
    env_id: str, seed: int, steps: int, stage: str = "nothing", guided: bool = True, length: int = 1000
) -> Counter[str]:
    """Compare `steps` steps of a seed, each episode staged alike.

    Returns:
        What was met on the way: steps in the dark and asleep, arrows, deaths by cause, achievements.

    Raises:
        Mismatch: the first difference.
    """
    rng = np.random.default_rng([seed, len(stage), steps])
    rule_set = GAMES[env_id].rules
    pair = Pair(env_id, seed, length)
    STAGES[stage](pair, rng)
    pair.history += f" ({stage})"
    met: Counter[str] = Counter(steps=steps)
    for _ in range(steps):
        action = bot(pair.observation["symbolic"], rule_set, rng) if guided else int(rng.integers(len(rule_set.verbs)))
        done = pair.step(action)
        symbolic = pair.observation["symbolic"]
        for key in ("action_success", "eval_success"):
            met[key] += int(pair.info.get(key, False))
        met["tasks done"] += int(bool(GAMES[env_id].task) and pair.info["success"])
        met["dark steps"] += int(symbolic[layout.DAYLIGHT] < layout.NIGHT)
        met["steps asleep"] += int(symbolic[layout.SLEEPING])
        met["steps with arrows in view"] += int((symbolic[layout.VIEW] == ARROW).any())
        met["steps with plants in view"] += int((symbolic[layout.VIEW] >= PLANT).any())
        if done:
            met["episodes"] += 1
            if pair.vector.engine.envs["inventory"][0, HEALTH] <= 0:
                met[f"deaths: {_cause_of_death(pair)}"] += 1
            met.update(name for name in ACHIEVEMENTS if pair.info["achievements"][name])
            pair.begin()
            STAGES[stage](pair, rng)
    met.update(name for name in ACHIEVEMENTS if pair.info["achievements"][name])
    return met


def main(arguments: list[str] | None = None) -> int:
    """Compare many steps over many seeds; 0 when nothing differs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m tests.envs.equality_crafter", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000, help="steps in all (default 20000)")
    parser.add_argument("--steps-per-seed", type=int, default=1_000, help="steps of each seed (default 1000)")
    parser.add_argument("--first-seed", type=int, default=0, help="seeds are counted from here (default 0)")
    parser.add_argument("--only", default="", help="ids that hold this text, such as Typed (default: all)")
    options = parser.parse_args(arguments)
    ids, stages = [env_id for env_id in GAMES if options.only in env_id], list(STAGES)
    met: Counter[str] = Counter()
    seeds = -(-options.steps // options.steps_per_seed)
    for i in range(seeds):
        seed = options.first_seed + i
        staged = i % 2 == 1
        stage = stages[i // 2 % len(stages)] if staged else "nothing"
        try:
            met += play(ids[i % len(ids)], seed, options.steps_per_seed, stage, guided=staged)
        except Mismatch as mismatch:
            sys.stdout.write(f"{mismatch}\n")
            return 1
        except KeyboardInterrupt:
            seeds = i
            break
        if (i + 1) % 10 == 0:
            sys.stderr.write(f"{met['steps']} steps over {i + 1} seeds agree\n")
    sys.stdout.write(f"{met.pop('steps', 0)} steps over {seeds} seeds agree in everything. Met on the way:\n")
    sys.stdout.writelines(f"{count:8d}  {what}\n" for what, count in sorted(met.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
