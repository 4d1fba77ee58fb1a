"""The native BabyAI engine against PyPI minigrid, side by side from the same seeds and actions.

    python -m tests.envs.equality_babyai --steps 2000000 --seeds 500

Every observation, final observation, reward, terminated, truncated, success, mission, caption, episode statistic and,
after every reset, the state of the random stream must agree. A mismatch ends the run with the id, the seed, the step
and both states. Four kinds of action streams drive the envs: uniform; minigrid's own bot, with an occasional random
action; a meddler that picks up, toggles and drops on whatever it meets; and errands, which walk to the places and
objects the mission speaks of, in any order, and carry them about.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from minigrid.utils.baby_ai_bot import BabyAIBot

from bkrl.core.errors import UsageError
from bkrl.envs import make, make_vec
from bkrl.envs.babyai import FAMILY, runs_natively
from bkrl.envs.babyai.captions import caption
from bkrl.envs.babyai.constants import (
    COLOR_NAMES,
    DROP,
    FORWARD,
    LEFT,
    OBS_SHAPE,
    PICKUP,
    RIGHT,
    STATE_NAMES,
    TOGGLE,
    TYPE_NAMES,
    WALL,
)
from bkrl.envs.babyai.drawing import parts
from bkrl.envs.babyai.engine import BabyAIEngine
from bkrl.envs.babyai.glam import LEVELS as GLAM
from bkrl.envs.babyai.levels import LEVELS
from bkrl.envs.babyai.pcg64 import read_stream
from bkrl.envs.babyai.reference import ReferenceBabyAI
from bkrl.envs.babyai.state import MARGIN

Cell = tuple[int, int]

NUM_ENVS = 4
PATIENCE = 300  # subgoals the bot may think of for one action
HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
STREAMS = ("random", "bot", "meddler", "errands")
DULL = ("wall", "lava", "floor")
# minigrid's bot cannot do these: it gives up, or searches without end.
NOT_FOR_THE_BOT = ("Carrying", "KeyInBox", "MiniGrid-", "Debug")


class Mismatch(AssertionError):
    """Engine and reference disagree."""


def native_ids() -> list[str]:
    """Every id the engine runs: the published levels, then minigrid's."""
    ids = [*LEVELS, *GLAM]
    for env_id in FAMILY.other_ids():
        try:
            if runs_natively(env_id):
                ids.append(env_id)
        except UsageError:
            continue  # minigrid itself cannot build it here
    return ids


class Plans(list[Any]):
    """The bot's stack of subgoals, which in some layouts it would push to for ever."""

    patience = PATIENCE

    def append(self, subgoal: Any) -> None:
        """Push a subgoal, or lose patience."""
        self.patience -= 1
        if self.patience < 0:
            raise RuntimeError("the bot goes round in circles")
        super().append(subgoal)


class Driver:
    """Chooses actions for one reference env."""

    def __init__(self, stream: str, env: ReferenceBabyAI, rng: np.random.Generator) -> None:
        self.stream, self.env, self.rng = stream, env, rng
        self.bot: Any = None
        self.taken: int | None = None
        self.place: Cell | None = None

    def new_episode(self) -> None:
        """Called after each reset."""
        self.bot, self.taken, self.place = None, None, None
        if self.stream == "bot" and not any(word in self.env.env_spec.env_id for word in NOT_FOR_THE_BOT):
            self.bot = BabyAIBot(self.env.inner)
            self.bot.stack = Plans(self.bot.stack)

    def action(self) -> int:
        """The next action."""
        if self.stream == "meddler":
            self.taken = self.meddle()
        elif self.stream == "errands":
            self.taken = self.errand()
        elif self.bot is not None and self.rng.random() < 0.97:
            self.taken = self.advice()
        else:
            self.taken = int(self.rng.integers(7))
            self.bot = None if self.bot is not None and self.taken in (PICKUP, DROP, TOGGLE) else self.bot
        return self.taken % len(self.env.env_spec.action_names)  # some levels know the first three only

    def advice(self) -> int:
        try:
            self.bot.stack.patience = PATIENCE
            return int(self.bot.replan(self.taken))
        except Exception:  # noqa: BLE001 - the bot gives up in many ways; the envs go on without it
            self.bot = None
            return int(self.rng.integers(7))

    def meddle(self) -> int:
        """Walk about, and do something to whatever stands in front."""
        env = self.env.inner
        front = env.grid.get(*env.front_pos)
        if front is not None and front.type not in ("wall", "lava", "goal") and self.rng.random() < 0.7:
            return int(self.rng.choice([PICKUP, TOGGLE, DROP, FORWARD], p=[0.35, 0.3, 0.2, 0.15]))
        if env.carrying is not None and self.rng.random() < 0.3:
            return DROP
        return int(self.rng.choice([FORWARD, LEFT, RIGHT, 6], p=[0.6, 0.18, 0.18, 0.04]))

    def errand(self) -> int:
        """On to the place in mind; having arrived before it, do something there and think of another place."""
        env = self.env.inner
        if self.place is None or self.rng.random() < 0.02:
            self.place = self.think_of_a_place()
        at, front = as_cell(env.agent_pos), as_cell(env.front_pos)
        if self.place is None or self.place == at:
            self.place = None
            return FORWARD
        if front == self.place:
            self.place = None
            if getattr(env.grid.get(*front), "type", None) == "goal":
                return FORWARD
            return int(self.rng.choice([PICKUP, DROP, TOGGLE, 6], p=[0.4, 0.35, 0.15, 0.1]))
        towards = first_step(env.grid, at, self.place)
        if towards is None:
            self.place = None
            return self.meddle()
        turn = (towards - int(env.agent_dir)) % 4
        if turn:
            return LEFT if turn == 3 else RIGHT
        cell = env.grid.get(*front)
        return TOGGLE if cell is not None and cell.type == "door" and not cell.is_open else FORWARD

    def think_of_a_place(self) -> Cell | None:
        """Where an object of the mission is, was when its description last looked, or a cell beside one."""
        places = set()
        for description in descriptions(getattr(self.env.inner, "instrs", None)):
            places.update(as_cell(place) for place in description.obj_poss)
            places.update(as_cell(thing.cur_pos) for thing in description.obj_set if thing.cur_pos is not None)
        if not places:  # a level of minigrid's: its doors, its objects, its goal
            width = self.env.inner.grid.width
            things = [i for i, thing in enumerate(self.env.inner.grid.grid) if thing and thing.type not in DULL]
            places = {(i % width, i // width) for i in things}
        places = {(x, y) for x, y in places if x >= 0}
        if self.rng.random() < 0.5:
            places = {(x + dx, y + dy) for x, y in places for dx, dy in HEADINGS}
        if not places:
            return None
        return sorted(places)[int(self.rng.integers(len(places)))]


def as_cell(place: Any) -> Cell:
    """A position as a pair of ints."""
    return int(place[0]), int(place[1])


def descriptions(instruction: Any) -> list[Any]:
    """All object descriptions of a mission."""
    if instruction is None:
        return []
    if hasattr(instruction, "instr_a"):
        return descriptions(instruction.instr_a) + descriptions(instruction.instr_b)
    return [getattr(instruction, name) for name in ("desc", "desc_move", "desc_fixed") if hasattr(instruction, name)]


def first_step(grid: Any, start: Cell, goal: Cell) -> int | None:
    """The heading of a shortest way to stand beside the goal, through empty cells and unlocked doors; None if none."""
    came: dict[Cell, int] = {start: -1}
    queue = deque([start])
    while queue:
        x, y = queue.popleft()
        for heading, (dx, dy) in enumerate(HEADINGS):
            cell = (x + dx, y + dy)
            first = heading if came[x, y] < 0 else came[x, y]
            if cell == goal:
                return first
            if cell in came or not (0 <= cell[0] < grid.width and 0 <= cell[1] < grid.height):
                continue
            thing = grid.get(*cell)
            if thing is None or thing.type in ("floor", "goal") or (thing.type == "door" and not thing.is_locked):
                came[cell] = first
                queue.append(cell)
    return None


def stream_in(engine: BabyAIEngine, index: int) -> np.random.Generator:
    """A copy of the stream of random numbers of one of the engine's envs."""
    generator = np.random.Generator(np.random.PCG64())
    read_stream(engine.envs[index], generator)
    return generator


def in_words(engine: BabyAIEngine, index: int) -> str:
    """The whole state of one of the engine's envs."""
    env = engine.envs[index]
    y, x = divmod(int(env["agent"]), engine._stride)
    lines = [
        f"{engine.missions(np.array([index]))[0]!r} step {env['steps']} of {env['max_steps']}",
        f"agent at ({x - MARGIN}, {y - MARGIN}) heading {['right', 'down', 'left', 'up'][env['heading']]}",
    ]
    for (row, column), cell in np.ndenumerate(engine._inner(index)):
        kind, color, state = parts(int(cell))
        if kind > WALL:
            text = f"{COLOR_NAMES[color]} {TYPE_NAMES[kind]} at ({column}, {row})"
            lines.append(f"{STATE_NAMES[state]} {text}" if TYPE_NAMES[kind] == "door" else text)
    kind, color, _ = parts(int(env["carrying"]))
    lines.append(f"carrying a {COLOR_NAMES[color]} {TYPE_NAMES[kind]}" if kind else "carrying nothing")
    return "\n".join(lines)


def compare(env_id: str, stream: str, seeds: list[int], steps: int, seen: Counter[str], **options: Any) -> None:
    """Run envs of one id with these seeds for so many steps each; Mismatch where anything differs."""
    native = make_vec(env_id, len(seeds), **options)
    references = [make(env_id, backend="reference", **options) for _ in seeds]
    drivers = [
        Driver(stream, env, np.random.default_rng([seed, 7])) for env, seed in zip(references, seeds, strict=True)
    ]
    at = -1

    def check(what: str, n: int, ours: Any, theirs: Any) -> None:
        if not np.array_equal(ours, theirs):
            raise Mismatch(
                f"{what} differs: {env_id}, seed {seeds[n]}, step {at} of the {stream} stream\n"
                f"engine: {ours}\nminigrid: {theirs}\n"
                f"--- engine's env\n{in_words(native.engine, n)}\n"
                f"--- minigrid's env\n{references[n].inner.mission!r} step {references[n].inner.step_count} of "
                f"{references[n].inner.max_steps}, carrying {references[n].inner.carrying}\n{references[n].inner}"
            )

    def check_new_episode(n: int) -> None:
        check("mission", n, native.missions()[n], references[n].mission)
        check("random stream", n, str(stream_in(native.engine, n).bit_generator.state), str(stream_of(references[n])))
        check("step limit", n, native.engine.envs["max_steps"][n], references[n].inner.max_steps)

    views, _ = native.reset(seed=seeds)
    for n, env in enumerate(references):
        check("first observation", n, views[n], env.reset(seed=seeds[n])[0])
        check_new_episode(n)
        drivers[n].new_episode()
    returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), int)
    for at in range(steps):
        actions = np.array([driver.action() for driver in drivers])
        views, rewards, terminated, truncated, infos = native.step(actions)
        last = np.stack([env.inner.gen_obs()["image"] for env in references])
        for n, env in enumerate(references):
            count_meeting(env, int(actions[n]), seen)
            last[n], reward, done, cut, info = env.step(int(actions[n]))
            returns[n] += reward
            lengths[n] += 1
            check("reward", n, rewards[n], np.float32(reward))
            check("terminated", n, terminated[n], done)
            check("truncated", n, truncated[n], cut)
            check("success", n, infos["success"][n], info["success"])
            if "task_kind" in infos:
                check("kind of task", n, infos["task_kind"][n], info["task_kind"])
                seen[f"kind {info['task_kind']}"] += 1
            if done or cut:
                check("final observation", n, infos["final_obs"][n], last[n])
                check("episode ended", n, infos["_final_obs"][n] and infos["_episode"][n], True)
                check("episode return", n, infos["episode"]["r"][n], returns[n])
                check("episode length", n, infos["episode"]["l"][n], lengths[n])
                returns[n] = lengths[n] = 0
                seen["success" if info["success"] else "truncated" if cut and not done else "failure"] += 1
                last[n], _ = env.reset()
                check_new_episode(n)
                drivers[n].new_episode()
            elif "final_obs" in infos:
                check("episode ended", n, infos["_final_obs"][n] or infos["_episode"][n], False)
            check("observation", n, views[n], last[n])
        if at % 16 == 0 and last.shape[1:] == OBS_SHAPE:
            for n, (ours, theirs) in enumerate(zip(caption(views), map(caption, last[:, None]), strict=True)):
                check("caption", n, ours, theirs[0])
        seen["steps"] += len(seeds)
    seen["seeds"] += len(seeds)


def stream_of(env: ReferenceBabyAI) -> Any:
    """The state of the reference's random stream."""
    return env.inner.np_random.bit_generator.state


def count_meeting(env: ReferenceBabyAI, action: int, seen: Counter[str]) -> None:
    """Keep count of which actions met which objects."""
    if action not in (FORWARD, PICKUP, DROP, TOGGLE):
        return
    front = env.inner.grid.get(*env.inner.front_pos)
    carried = "carrying" if env.inner.carrying is not None else "free"
    if action != FORWARD or (front is not None and front.type != "wall"):
        seen[
            f"{('forward', 'pickup', 'drop', 'toggle')[action - FORWARD]} {front.type if front else 'empty'} {carried}"
        ] += 1


def blocks(first: int = 0) -> Iterator[list[int]]:
    """Fresh seeds, NUM_ENVS at a time."""
    for start in itertools.count(first, NUM_ENVS):
        yield list(range(start, start + NUM_ENVS))


def main() -> int:
    """Run until both the steps and the seeds asked for are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000, help="steps to compare, all envs together")
    parser.add_argument("--seeds", type=int, default=500, help="least number of different seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="begin after so many pairs of id and stream")
    parser.add_argument("--only", default="", help="only ids that contain this text")
    args = parser.parse_args()
    ids = [env_id for env_id in native_ids() if args.only in env_id]
    seen: Counter[str] = Counter()
    started = time.time()
    seeds = blocks(args.first_seed)
    pairs = itertools.cycle(itertools.product(ids, STREAMS))
    for env_id, stream in itertools.islice(pairs, args.skip, None):
        if seen["steps"] >= args.steps and seen["seeds"] >= args.seeds:
            break
        published = env_id in LEVELS or env_id in GLAM
        compare(env_id, stream, next(seeds), 1000 if published else 300, seen)
        seen[f"id {env_id}"] += 1
        print(f"\r{seen['steps']:,} steps {seen['seeds']:,} seeds {time.time() - started:.0f} s {env_id} {stream:40}",
              end="", file=sys.stderr, flush=True)  # fmt: skip
    print(file=sys.stderr)
    print(f"equal over {seen.pop('steps'):,} steps, {seen.pop('seeds'):,} seeds, "
          f"{sum(key.startswith('id ') for key in seen)} ids in {time.time() - started:.0f} s")  # fmt: skip
    for key, count in sorted(seen.items()):
        if not key.startswith("id "):
            print(f"{count:10,}  {key}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
