"""minigrid's levels that are not BabyAI's: the table, the layouts and the rules are minigrid's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bkrl.agents.bot import BotAgent
from bkrl.agents.play import play
from bkrl.core.errors import UsageError
from bkrl.envs import env_spec, make_vec, memory_of
from bkrl.envs.babyai import FAMILY
from bkrl.envs.babyai.constants import COLOR_NAMES, DONE_ENDS, FORWARD, GO_BESIDE, TYPE_NAMES
from bkrl.envs.babyai.drawing import parts
from bkrl.envs.babyai.minigrid.levels import MINIGRID_LEVELS
from bkrl.envs.babyai.minigrid.rules import MAX_OBSTACLES
from bkrl.envs.babyai.reference import describe, make_minigrid
from bkrl.envs.reference import ReferenceVectorEnv
from tests.envs import equality_babyai as equality


def test_the_table_is_minigrids() -> None:
    there = {env_id for env_id in FAMILY.other_ids() if env_id.startswith("MiniGrid-") and "-WFC-" not in env_id}
    assert there == set(MINIGRID_LEVELS)
    for env_id, level in MINIGRID_LEVELS.items():
        env = make_minigrid(env_id)
        ours = (level.width, level.height, level.max_steps, level.see_through)
        assert ours == (env.width, env.height, env.max_steps, env.see_through_walls), env_id
        assert env.agent_view_size == 7
    assert max(level.count for level in MINIGRID_LEVELS.values()) <= MAX_OBSTACLES


@pytest.mark.parametrize("env_id", MINIGRID_LEVELS)
def test_layouts_equal_minigrid(env_id: str) -> None:
    """Whole maps, missions and streams, of the first episodes of many seeds and of those that follow."""
    seeds = list(range(1000, 1008))
    native = make_vec(env_id, len(seeds))
    engine = native.engine  # type: ignore[attr-defined]
    native.reset(seed=seeds)
    streams = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]
    env = make_minigrid(env_id)
    env.reset(seed=0)
    for episode in range(2):
        for n, stream in enumerate(streams):
            env.np_random = stream
            env.reset()
            theirs = [
                (1, 0, 0, None) if thing is None else (*thing.encode(), contents(thing)) for thing in env.grid.grid
            ]
            ours = [(*parts(int(cell)), content_of(int(cell))) for cell in engine._inner(n).ravel()]
            assert ours == theirs, (episode, seeds[n])
            y, x = divmod(int(engine.envs["agent"][n]), engine._stride)
            assert (x - 6, y - 6, engine.envs["heading"][n]) == (*env.agent_pos, env.agent_dir)
            assert native.missions()[n] == env.mission
            assert equality.stream_in(engine, n).bit_generator.state == stream.bit_generator.state
        native.reset()


def contents(thing: Any) -> tuple[int, int] | None:
    return None if thing.contains is None else thing.contains.encode()[:2]


def content_of(cell: int) -> tuple[int, int] | None:
    return (cell >> 9 & 15, cell >> 13 & 7) if cell >> 9 & 15 else None


# The levels that end in several ways; in the others a goal is reached, or a door opened.
@pytest.mark.parametrize(
    ("env_id", "stream", "steps", "ends"),
    [
        ("MiniGrid-Dynamic-Obstacles-6x6-v0", "errands", 150, {"success", "failure"}),
        ("MiniGrid-Dynamic-Obstacles-16x16-v0", "meddler", 60, {"failure"}),
        ("MiniGrid-Fetch-5x5-N2-v0", "errands", 100, {"success", "failure"}),
        ("MiniGrid-GoToDoor-5x5-v0", "random", 100, {"success", "failure"}),
        ("MiniGrid-GoToObject-6x6-N2-v0", "random", 100, {"success", "failure"}),
        ("MiniGrid-PutNear-6x6-N2-v0", "errands", 250, {"success", "failure", "truncated"}),
        ("MiniGrid-MemoryS7-v0", "errands", 100, {"success", "failure"}),
        ("MiniGrid-RedBlueDoors-6x6-v0", "errands", 200, {"success", "failure"}),
        ("MiniGrid-Unlock-v0", "errands", 300, {"success"}),
        pytest.param("MiniGrid-UnlockPickup-v0", "errands", 700, {"success"}, marks=pytest.mark.slow),
        ("MiniGrid-KeyCorridorS3R1-v0", "errands", 500, {"success", "truncated"}),
        pytest.param("MiniGrid-ObstructedMaze-1Dl-v0", "errands", 400, {"success"}, marks=pytest.mark.slow),
        ("MiniGrid-LavaCrossingS9N1-v0", "meddler", 60, {"failure"}),
        ("MiniGrid-MultiRoom-N2-S4-v0", "meddler", 90, {"truncated"}),
        ("MiniGrid-DoorKey-5x5-v0", "errands", 150, {"success"}),
    ],
)
def test_every_end_equals_minigrid(env_id: str, stream: str, steps: int, ends: set[str]) -> None:
    seen: Counter[str] = Counter()
    equality.compare(env_id, stream, [5000, 5001, 5002, 5003], steps, seen)
    assert ends <= set(seen)


@pytest.mark.parametrize("env_id", MINIGRID_LEVELS)
def test_steps_equal_minigrid(env_id: str) -> None:
    equality.compare(env_id, "meddler", [7, 8], 25, Counter())
    equality.compare(env_id, "errands", [9, 10], 25, Counter())


@pytest.mark.parametrize("name", ["Unlock", "UnlockPickup", "KeyCorridorS3R1", "ObstructedMaze-1Dlhb", "DoorKey-6x6"])
def test_the_bot_carries_missions_out(name: str) -> None:
    """It plans from what the records say of the mission."""
    env_id = f"MiniGrid-{name}-v0"
    assert all(episode.success for episode in play(BotAgent.of(env_id), make_vec(env_id, 8), 16, seed=0))


def test_there_is_no_bot_where_things_move_by_themselves() -> None:
    with pytest.raises(UsageError, match="has no bot"):
        BotAgent.of("MiniGrid-Dynamic-Obstacles-5x5-v0")


def test_running_into_an_obstacle_is_punished() -> None:
    env = make_vec("MiniGrid-Dynamic-Obstacles-5x5-v0", 16)
    assert env.env_spec.action_names == ("left", "right", "forward")
    env.reset(seed=0)
    _, rewards, terminated, _, infos = env.step(np.full(16, FORWARD))
    _, more, ended, _, _ = env.step(np.full(16, FORWARD))  # a wall counts, too
    assert set(np.concatenate([rewards, more]).tolist()) <= {-1.0, 0.0}
    np.testing.assert_array_equal(terminated, rewards == -1.0)
    np.testing.assert_array_equal(ended, more == -1.0)
    assert ended.any()
    assert not infos["success"].any()
    if terminated.any():
        np.testing.assert_array_equal(infos["episode"]["r"][terminated], rewards[terminated])


@pytest.mark.parametrize(
    "env_id", ["MiniGrid-Dynamic-Obstacles-8x8-v0", "MiniGrid-Fetch-8x8-N3-v0", "MiniGrid-MultiRoom-N6-v0"]
)
def test_the_same_seeds_give_the_same_steps(env_id: str) -> None:
    """With one thread and two, and after a snapshot."""
    one, two = make_vec(env_id, 130), make_vec(env_id, 130, threads=2)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(one.reset(seed=3)[0], two.reset(seed=3)[0])
    for step in range(60):
        actions = rng.integers(0, len(one.env_spec.action_names), 130)
        for mine, other in zip(one.step(actions)[:4], two.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(mine, other)
        if step == 20:
            two.close()
            state, two = one.snapshot(), make_vec(env_id, 130)
            two.restore(state)
    np.testing.assert_array_equal(one.missions(), two.missions())


def test_where_the_action_done_ends_an_episode_is_told_by_the_id() -> None:
    ends = {env_id for env_id, level in MINIGRID_LEVELS.items() if level.task == GO_BESIDE}
    assert ends == {env_id for env_id in FAMILY.other_ids() if env_id.startswith(DONE_ENDS)}


def test_levels_registered_by_others_run_on_minigrid() -> None:
    """The engine knows ids, not classes: a user's own sizes are stepped by minigrid where the rules are not common."""
    env_id = "MiniGrid-GoToDoor-7x7-v0"
    gym.register(env_id, "minigrid.envs:GoToDoorEnv", kwargs={"size": 7})
    try:
        env = make_vec(env_id, 2)
        assert isinstance(env, ReferenceVectorEnv)
        assert "always runs on minigrid" in env.env_spec.rules
        env.reset(seed=0)
        assert env.frame(0).shape == (7 * 32, 7 * 32, 3)
    finally:
        del gym.registry[env_id]
    assert "always" not in describe("MiniGrid-GoToDoor-6x6-v0").rules


def test_views_of_another_size_have_pictures_and_nothing_that_reads_cells_of_the_usual_ones() -> None:
    """Kernels of the memory read past their end; the tiles of a report were an IndexError."""
    env_id = "MiniGrid-Narrow-v0"
    gym.register(env_id, "minigrid.envs:EmptyEnv", kwargs={"agent_view_size": 5})
    try:
        views = make_vec(env_id, 2).reset(seed=0)[0]
        assert memory_of(env_id) is None
        assert FAMILY.relations(env_spec(env_id)) == {}
    finally:
        del gym.registry[env_id]
    maps, _ = FAMILY.tile_maps(views)
    assert maps.shape == (2, 5, 5)
    assert np.argwhere(maps == maps[0, 4, 2]).tolist() == [[0, 4, 2], [1, 4, 2]]  # the agent


def test_missions_name_what_is_there() -> None:
    env = make_vec("MiniGrid-PutNear-8x8-N3-v0", 4)
    env.reset(seed=0)
    for n, mission in enumerate(env.missions()):
        cells = {parts(int(cell))[:2] for cell in env.engine._inner(n).ravel()}  # type: ignore[attr-defined]
        words = mission.split()  # put the red ball near the green key
        for color, kind in ((words[2], words[3]), (words[6], words[7])):
            assert (TYPE_NAMES.index(kind), COLOR_NAMES.index(color)) in cells
