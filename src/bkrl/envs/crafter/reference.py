"""The Crafter envs on PyPI crafter 1.8.3: slow, and the ground truth of the engine.

PyPI crafter keeps the objects of a chunk in a `set`, which orders them by memory address; which zombie is despawned
then differs between processes. Here the set is replaced by an insertion-ordered one and nothing else is changed, so
that a seed means one trajectory. The env of episode e after `reset(seed=s)` is that of `crafter.Env(seed=s)` in its
e-th episode: MT19937 seeded with `hash((s, e)) % (2**31 - 1)`. Hashes of tuples of integers are the same in every
process.

Rendering at night draws from the env's random stream, so the picture is rendered at every step whatever is observed.
"""

import collections
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.jit import kept_where_possible
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.layout import CELL, FACING_STEPS
from bkrl.envs.crafter.options import FRAME_SCALE, checked_length, observation_space
from bkrl.envs.crafter.rules import ACHIEVEMENTS, AREA, CHUNK, GAMES, MAX_ITEM, SWORDS, VERBS, RuleSet
from bkrl.envs.crafter.tasks import tracker_of
from bkrl.envs.crafter.typed_actions import ACTION_SETS, VALID
from bkrl.envs.family import EnvSpec
from bkrl.envs.single import BaseEnv

with kept_where_possible("opensimplex"):
    import crafter
    from crafter import engine, objects, worldgen


class _OrderedSet(dict[Any, None]):
    """The part of `set` that crafter uses, in order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class _World(engine.World):
    """crafter's world with ordered chunks."""

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._chunks: dict[Any, _OrderedSet] = collections.defaultdict(_OrderedSet)


class _Player(objects.Player):
    """crafter's player under a rule set."""

    inventory: dict[str, int]
    achievements: dict[str, int]

    def __init__(self, world: engine.World, pos: tuple[int, int], rules: RuleSet) -> None:
        super().__init__(world, pos)
        self.rules = rules

    def _do_object(self, obj: Any) -> None:
        if isinstance(obj, (objects.Zombie, objects.Skeleton, objects.Cow)):
            damage = max([1, *(points for name, points in SWORDS.items() if self.inventory[name])])
            obj.health -= max(0, self.rules.base_damage - damage)  # crafter deals the rest
        super()._do_object(obj)

    def _do_material(self, target: Any, material: str | None) -> None:
        held, unlocked = self.inventory.copy(), self.achievements.copy()
        super()._do_material(target, material)
        if self.rules.full_item_fails:
            for name, amount in held.items():
                if amount == MAX_ITEM and self.inventory[name] > amount:
                    self.inventory, self.achievements = held, unlocked
                    return


class _TypedPlayer(_Player):
    """A player of ELLM's rules, written down by the names of actions, without the engine's tables.

    Attributes:
        deed: what it was asked to do.
        done: whether the game did it (`eval_success`).
        permitted: whether it counts by the permissive rule (`action_success`).
    """

    sleeping: bool
    deed = "do nothing"
    done = permitted = False

    def update(self) -> None:
        target = (self.pos[0] + self.facing[0], self.pos[1] + self.facing[1])
        material, faced = self.world[target]
        noun = self.deed.partition(" ")[2]
        kind = type(faced).__name__.lower() if faced else None
        named = noun in (material, kind) or self.inventory.get(noun.replace(" ", "_"), 0) > 0
        forced = self.sleeping and self.inventory["energy"] < MAX_ITEM
        if self.sleeping and not forced:
            self.sleeping = False
            self.achievements["wake_up"] += 1
        done = self._act("sleep" if forced else self.deed, target, material, faced)
        heard = not forced or self.deed == "sleep"
        self.done = done and heard
        self.permitted = self.done or (named and heard)
        self._update_life_stats()
        self._degen_or_regen_health()
        for name, amount in self.inventory.items():
            self.inventory[name] = max(0, min(amount, MAX_ITEM))
        self._wake_up_when_hurt()

    def _act(self, deed: str, target: Any, material: str | None, faced: Any) -> bool:
        """Do it if it can be done; whether it was."""
        verb, _, noun = deed.partition(" ")
        if deed == "do nothing":
            return True
        if verb == "move":
            before = tuple(self.pos)
            self._move(noun)
            return tuple(self.pos) != before
        if verb == "sleep":
            tired = self.inventory["energy"] < MAX_ITEM
            self.sleeping = self.sleeping or tired
            return tired
        if deed not in VALID:
            return False
        if verb in ("eat", "attack"):
            if not isinstance(faced, vars(objects)[noun.capitalize()]):
                return False
            done = faced.ripe if isinstance(faced, objects.Plant) else True
            self._do_object(faced)
            return bool(done)
        before_counts = self.achievements.copy()
        if noun == "crafting table":
            self._place("table", target, material)
        elif verb == "place":
            self._place(noun, target, material)
        elif verb == "make":
            self._make(noun.replace(" ", "_"))
        elif material == noun:
            self._do_material(target, material)
        return self.achievements != before_counts

    def _place(self, name: str, target: Any, material: str | None) -> None:
        if name != "table":
            super()._place(name, target, material)
        elif self.inventory["wood"] >= self.rules.table_wood:
            cheaper = 2 - self.rules.table_wood  # crafter takes 2
            tables = self.achievements["place_table"]
            self.inventory["wood"] += cheaper
            super()._place(name, target, material)
            if self.achievements["place_table"] == tables:
                self.inventory["wood"] -= cheaper


class ReferenceGame(crafter.Env):
    """`crafter.Env` with ordered chunks, a rule set, and a seed that can be set."""

    def __init__(self, rules: RuleSet, length: int) -> None:
        super().__init__(area=(AREA, AREA), length=length, seed=0)
        self._world = _World((AREA, AREA), crafter.constants.materials, (CHUNK, CHUNK))
        self._local_view = engine.LocalView(self._world, self._textures, [layout.VIEW_COLUMNS, layout.VIEW_ROWS])
        self._kind = _TypedPlayer if rules.typed else _Player
        kinds = [self._kind, objects.Cow, objects.Zombie, objects.Skeleton, objects.Arrow, objects.Plant]
        self._sem_view = engine.SemanticView(self._world, kinds)
        self.rules = rules

    def reseed(self, seed: int) -> None:
        """Count episodes from 1 again, with envs of `seed`."""
        self._seed, self._episode = seed, 0

    def reset(self) -> NDArray[np.uint8]:
        """crafter.Env.reset with our player."""
        self._episode += 1
        self._step = 0
        self._world.reset(seed=hash((self._seed, self._episode)) % (2**31 - 1))
        self._update_time()
        self._player = self._kind(self._world, (AREA // 2, AREA // 2), self.rules)
        self._last_health = self._player.health
        self._world.add(self._player)
        self._unlocked: set[str] = set()
        worldgen.generate_world(self._world, self._player)
        return self._obs()

    def semantic(self) -> NDArray[np.uint8]:
        """(64, 64) crafter's own ids, indexed [x, y]."""
        return np.asarray(self._sem_view(), np.uint8)

    def symbolic(self, semantic: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(82,) the observation of `layout`, given the semantic map."""
        player = self._player
        canvas = semantic.copy()
        for obj in self._world.objects:
            if isinstance(obj, objects.Plant) and obj.ripe:
                canvas[tuple(obj.pos)] = CELL["ripe_plant"]
        row = np.zeros(layout.SIZE, np.uint8)
        row[layout.VIEW] = layout.local_view(canvas, int(player.pos[0]), int(player.pos[1]))
        row[layout.FACING] = FACING_STEPS.index((int(player.facing[0]), int(player.facing[1])))
        row[layout.INVENTORY] = list(player.inventory.values())
        row[layout.SLEEPING] = player.sleeping
        row[layout.DAYLIGHT] = int(255 * self._world.daylight)
        return row


class CrafterEnv(BaseEnv):
    """One Crafter env, with the options of `vector.CrafterVectorEnv`. What it renders is its picture, four times as
    large.

    `info` of every step: `success`, `inventory` and `achievements` (name → count), `player_pos` (x, y), `semantic`
    (64, 64) uint8 indexed [x, y] with crafter's own ids, and `discount` (0 after death); in typed envs
    `action_success` and `eval_success` too.
    """

    def __init__(
        self,
        env_spec: EnvSpec,
        observation: str = "symbolic",
        length: int | None = None,
        subgoals: str = "hidden",
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(env_spec, observation_space(observation), render_mode)
        self._observation = observation
        self._rules = GAMES[env_spec.env_id]
        self._length = checked_length(env_spec.max_steps if length is None else length)
        self._deeds = [action.deed for action in ACTION_SETS.get(self._rules.rules.typed, ())]
        self._tracker = tracker_of(env_spec.env_id, 1, subgoals)
        self.game = ReferenceGame(self._rules.rules, self._length)
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed, the next one of the seed given last."""
        self._check_reset(seed, options)
        if seed is not None:
            self.game.reseed(seed)
        elif not self._seeded:
            self.game.reseed(int(self.np_random.integers(2**31 - 1)))
        self._seeded = True
        self._image = self.game.reset()
        self._semantic = self.game.semantic()
        self._health = self.game._player.health
        self._unlocked = 0
        if self._tracker:
            self._tracker.begin(np.ones(1, bool))
        return self._obs(), self._info(False, False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        number = int(self._check_step(action)[0])
        rules = self._rules
        verb = rules.rules.verbs[number]
        if self._deeds:
            self.game._player.deed = self._deeds[number]
        self._image, _, _, theirs = self.game.step(crafter.constants.actions.index(VERBS[verb]))
        self._semantic = theirs["semantic"]
        player = self.game._player
        unlocked = sum(player.achievements[name] > 0 for name in rules.tasks)
        reward = 1.0 if unlocked > self._unlocked else 0.0
        if rules.health_reward:
            reward += (player.health - self._health) / 10
        self._unlocked, self._health = unlocked, player.health
        solved = unlocked == len(rules.tasks)
        dead = player.health <= 0
        reward = reward if rules.pays else 0.0
        terminated = bool(dead or (solved and rules.rules.ends_on_success))
        if self._tracker:
            done, alive = np.array([player.done]), np.array([not dead])
            rewards, success, _ = self._tracker.update(np.array([number]), done, alive, self._around, self._holds)
            reward, solved = float(rewards[0]), bool(success[0])
            terminated = terminated or solved
        truncated = bool(self.game._step >= self._length and not terminated)
        self._over = terminated or truncated
        return self._obs(), reward, terminated, truncated, self._info(solved and self._over, dead)

    @property
    def mission(self) -> str:  # type: ignore[override]
        """What a typed task asks for; "" elsewhere."""
        return self._tracker.mission(0) if self._tracker else ""

    def _around(self, index: int) -> list[str]:
        player = self.game._player
        x, y = int(player.pos[0] + player.facing[0]), int(player.pos[1] + player.facing[1])
        beside = [(x + i, y + j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        cells = [self.game._world[place] for place in beside]
        return [type(thing).__name__.lower() if thing else str(material) for material, thing in cells]

    def _holds(self, index: int, item: str) -> bool:
        return self.game._player.inventory[item] > 0

    def _picture(self) -> NDArray[np.uint8]:
        """(256, 256, 3): that of the last observation."""
        return self._image.repeat(FRAME_SCALE, 0).repeat(FRAME_SCALE, 1)

    def _obs(self) -> Any:
        if self._observation == "image":
            return self._image
        symbolic = self.game.symbolic(self._semantic)
        return symbolic if self._observation == "symbolic" else {"symbolic": symbolic, "image": self._image}

    def _info(self, success: bool, dead: bool) -> dict[str, Any]:
        player = self.game._player
        typed = {"action_success": player.permitted, "eval_success": player.done} if self._deeds else {}
        return {
            "success": success,
            **typed,
            "inventory": player.inventory.copy(),
            "achievements": {name: player.achievements[name] for name in ACHIEVEMENTS},
            "player_pos": np.array(player.pos),
            "semantic": self._semantic,
            "discount": 0.0 if dead else 1.0,
        }
