"""The native BabyAI engine: equal to minigrid, restorable, and hard to misuse."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import gymnasium as gym
import numba
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bkrl.core.errors import InputError, UsageError
from bkrl.core.jit import kernel
from bkrl.envs import make, make_vec
from bkrl.envs.babyai.constants import BALL, EMPTY, WALL
from bkrl.envs.babyai.layouts import RecipeLayouts
from bkrl.envs.babyai.levels import LEVELS, PRETRAINING, PURPLE_KEY, Level, recipe_of
from bkrl.envs.babyai.loading import load
from bkrl.envs.babyai.pcg64 import integer_below, read_stream, write_stream
from bkrl.envs.babyai.reference import TextLevel
from bkrl.envs.babyai.rooms import place_agent
from bkrl.envs.babyai.state import ENV, MARGIN
from bkrl.envs.babyai.view import observe
from bkrl.envs.threads import Shares
from tests.envs import equality_babyai as equality

RED_BALL = "BabyAI-Text-GoToLocal-RedBall-S20"

# One id at least for each instruction, object, way of generating a layout, and rule.
ALIKE = {
    "BabyAI-BossLevel-v0", "BabyAI-GoToObjMazeOpen-v0", "BabyAI-GoToRedBallGrey-v0", "BabyAI-SynthS5R2-v0",
    "BabyAI-UnlockToUnlock-v0",
}  # fmt: skip
"""Levels of the sample that others in it are like."""
PYPI_SAMPLE = [
    "BabyAI-GoToRedBallGrey-v0",
    "BabyAI-GoToObjMazeOpen-v0",
    "BabyAI-OpenDoorsOrderN4Debug-v0",  # strict, before, after
    "BabyAI-OpenDoorLoc-v0",
    "BabyAI-PickupDistDebug-v0",  # strict
    "BabyAI-PutNextS5N2Carrying-v0",  # begins with full hands
    "BabyAI-MoveTwoAcrossS5N2-v0",
    "BabyAI-KeyInBox-v0",  # a box with a key in it
    "BabyAI-UnlockToUnlock-v0",
    "BabyAI-SynthS5R2-v0",
    "BabyAI-MiniBossLevel-v0",  # and, before, after
    "BabyAI-BossLevel-v0",
    "MiniGrid-LavaGapS5-v0",
    "MiniGrid-Empty-Random-5x5-v0",  # walls that hide nothing
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MultiRoom-N2-S4-v0",
    "MiniGrid-Playground-v0",
]


@pytest.mark.parametrize(
    "stream", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("random", "bot")), "meddler"]
)
def test_published_levels_equal_minigrid(stream: str) -> None:
    for i, env_id in enumerate(LEVELS):
        equality.compare(env_id, stream, [100 + i, 200 + i], 60, Counter())


def test_a_truncated_episode_equals_minigrid() -> None:
    seen: Counter[str] = Counter()
    equality.compare("BabyAI-Text-PickUp-RedBall-S20", "random", [0, 1], 401, seen)
    assert seen["truncated"] > 0


@pytest.mark.parametrize(
    "env_id", [pytest.param(one, marks=pytest.mark.slow) if one in ALIKE else one for one in PYPI_SAMPLE]
)
def test_other_levels_equal_minigrid(env_id: str) -> None:
    for stream, seeds in (("meddler", [1, 2]), ("bot", [3, 4]), ("errands", [5, 6])):
        equality.compare(env_id, stream, seeds, 60, Counter())


# Missions in which what is carried, dropped and remembered counts, and errands long enough to find that out.
@pytest.mark.parametrize(
    ("env_id", "steps"),
    [
        ("BabyAI-Text-GoTo-RedBallBlueBox-S20", 400),
        ("BabyAI-PutNextLocalS5N3-v0", 500),
        pytest.param("BabyAI-MiniBossLevel-v0", 800, marks=pytest.mark.slow),
        pytest.param("BabyAI-SynthSeq-v0", 300, marks=pytest.mark.slow),
    ],
)
def test_errands_equal_minigrid(env_id: str, steps: int) -> None:
    seen: Counter[str] = Counter()
    equality.compare(env_id, "errands", [11, 12, 13], steps, seen)
    assert seen["success"] > 1
    assert seen["drop empty carrying"] > 0


@pytest.mark.parametrize(("size", "distractors"), [(5, 1), (6, 4), pytest.param(7, 8, marks=pytest.mark.slow), (20, 7)])
def test_layouts_equal_minigrid(size: int, distractors: int) -> None:
    """Cramped rooms, in which many layouts are rejected because something cannot be reached."""
    level = Level("cramped", "go to, then go to", (PRETRAINING, PURPLE_KEY), size, distractors)
    env, layouts = TextLevel(level), RecipeLayouts(recipe_of(level), 1)
    stride = size + 2 * MARGIN
    grids, observations = np.zeros((1, stride * stride), np.uint32), np.zeros((1, 147), np.uint8)
    envs, record = np.zeros(1, ENV), np.zeros(1, ENV)[0]
    for seed in range(60):
        env.reset(seed=seed)
        write_stream(envs[0], np.random.Generator(np.random.PCG64(seed)))
        for _ in range(2):
            layouts.begin(Shares(1, 1), grids, envs, np.ones(1, bool), observations)
            loaded = grids[0].reshape(stride, stride).copy()
            load(env, loaded, record)  # all but the margins, with the marks of the mission
            write_stream(record, env.np_random)
            np.testing.assert_array_equal(grids[0].reshape(stride, stride), loaded)
            for name in ENV.names or ():
                if not name.startswith("target"):  # minigrid's missions are kept as text
                    np.testing.assert_array_equal(envs[0][name], record[name], err_msg=f"{name}, seed {seed}")
            assert layouts.missions(envs, np.arange(1)) == [env.mission]
            env.reset()


def test_a_wrong_engine_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = equality.make_vec

    def tampered(env_id: str, num_envs: int) -> Any:
        env = original(env_id, num_envs)
        step = env.step

        def wrong_step(actions: np.ndarray) -> Any:
            views, *rest = step(actions)
            views[-1, 0, 0, 2] ^= 1
            return (views, *rest)

        env.step = wrong_step
        return env

    monkeypatch.setattr(equality, "make_vec", tampered)
    with pytest.raises(equality.Mismatch, match=r"(?s)observation differs: .*seed 6, step 0.*engine's env.*minigrid's"):
        equality.compare(RED_BALL, "random", [5, 6], 3, Counter())


@numba.njit
def draw_all(envs: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    return np.array([integer_below(envs[0], bound) for bound in bounds])


def test_draws_are_numpys() -> None:
    envs = np.zeros(1, ENV)
    numpys = np.random.Generator(np.random.PCG64(42))
    write_stream(envs[0], numpys)
    bounds = [1, 2, 3, 4, 6, 20, 30, 1000, 3_000_000_000, 2**32 - 1] * 300
    drawn = draw_all(envs, np.array(bounds))
    assert drawn.tolist() == [int(numpys.integers(0, bound)) for bound in bounds]
    copy = np.random.Generator(np.random.PCG64())
    read_stream(envs[0], copy)
    assert copy.bit_generator.state == numpys.bit_generator.state


def play(env: Any, steps: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(steps):
        views, rewards, terminated, truncated, infos = env.step(rng.integers(0, 7, env.num_envs))
        out += [views, rewards, terminated, truncated, infos["success"]]
        out += [infos[key] for key in ("final_obs", "_final_obs") if key in infos]
        out.append(np.array(env.missions()))
    return out


def assert_same(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("env_id", ["BabyAI-Text-GoToLocal-Pretraining-S20", "BabyAI-MiniBossLevel-v0"])
def test_restore_then_step_equals_step(env_id: str) -> None:
    env = make_vec(env_id, 8)
    env.reset(seed=3)
    play(env, 150, 0)
    state = env.snapshot()
    going_on = play(env, 300, 1)
    env.restore(state)
    assert_same(play(env, 300, 1), going_on)
    another = make_vec(env_id, 8)
    another.restore(state)
    assert_same(play(another, 300, 1), going_on)
    assert {str(array.dtype) for array in state.values()} <= {"uint8", "uint32"}


def test_a_foreign_snapshot_is_refused() -> None:
    env = make_vec(RED_BALL, 4)
    with pytest.raises(RuntimeError, match="before reset"):
        env.snapshot()
    env.reset(seed=0)
    state = env.snapshot()
    other = make_vec("BabyAI-Text-GoToLocal-RedKey-S20", 4)
    other.reset(seed=0)
    for wrong in (
        other.snapshot(),
        make_and_snapshot(RED_BALL, 5),
        {name: array for name, array in state.items() if name != "grids"},
        {**state, "worlds": state["worlds"][:, :-1]},
    ):
        with pytest.raises(InputError, match="restore it into the envs it was taken from"):
            env.restore(wrong)
    damaged = {**state, "worlds": state["worlds"].copy()}
    damaged["worlds"].view(ENV)["agent"][0] = 10**6
    with pytest.raises(InputError, match="damaged"):
        env.restore(damaged)
    for name, array in env.snapshot().items():
        np.testing.assert_array_equal(array, state[name])


def test_a_snapshot_with_an_obstacle_off_the_map_is_refused() -> None:
    """Kernels would write where it points to."""
    env = make_vec("MiniGrid-Dynamic-Obstacles-5x5-v0", 2)
    env.reset(seed=0)
    state = env.snapshot()  # type: ignore[attr-defined]
    env.restore(state)  # type: ignore[attr-defined]
    state["worlds"].view(ENV)["obstacles"][1] |= 0xFF00
    with pytest.raises(InputError, match="damaged"):
        env.restore(state)  # type: ignore[attr-defined]


def make_and_snapshot(env_id: str, num_envs: int) -> dict[str, np.ndarray]:
    env = make_vec(env_id, num_envs)
    env.reset(seed=0)
    return env.snapshot()


def test_some_envs_can_be_reset() -> None:
    env: Any
    for env in (make_vec(RED_BALL, 4), make_vec(RED_BALL, 4, backend="reference")):
        first, _ = env.reset(seed=10)
        play(env, 30, 0)
        mask = np.array([True, False, False, True])
        before = play(env, 1, 1)[0]
        after, _ = env.reset(seed=[10, None, None, 13], options={"reset_mask": mask})
        np.testing.assert_array_equal(after[mask], first[mask])
        np.testing.assert_array_equal(after[~mask], before[~mask])


def test_without_seed_the_stream_goes_on() -> None:
    ours, theirs = make_vec(RED_BALL, 2), make_vec(RED_BALL, 2, backend="reference")
    for _ in range(3):
        np.testing.assert_array_equal(ours.reset(seed=4)[0], theirs.reset(seed=4)[0])
        for _ in range(3):
            np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
    unseeded = [make_vec(RED_BALL, 1).reset()[0].tobytes() for _ in range(4)]
    assert len(set(unseeded)) > 1


def test_bad_input_changes_nothing() -> None:
    env = make_vec(RED_BALL, 3)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(np.zeros(3, int))
    with pytest.raises(ValueError, match="first reset must be of all"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    env.reset(seed=0)
    state = env.snapshot()
    for actions in ([0, 7, 0], [0, -1, 0], [0, 0], [[0, 0, 0]], [0.0, 1.0, 2.0], ["left"] * 3, None, [2**40] * 3):
        with pytest.raises((ValueError, TypeError)):
            env.step(actions)
    for seed in (-1, [1, 2], [1, 2, -3]):
        with pytest.raises(ValueError, match="seed"):
            env.reset(seed=seed)  # type: ignore[arg-type]
    for options in ({"reset_mask": np.ones(2, bool)}, {"reset_mask": np.zeros(3, bool)}, {"size": 7}):
        with pytest.raises(ValueError, match="reset"):
            env.reset(options=options)
    for name, array in env.snapshot().items():
        np.testing.assert_array_equal(array, state[name])
    with pytest.raises(UsageError, match="no option 'colour'"):
        make_vec(RED_BALL, 3, colour="red")
    with pytest.raises(ValueError, match="at least 1"):
        make_vec(RED_BALL, 0)


def test_returned_arrays_belong_to_the_caller() -> None:
    env = make_vec(RED_BALL, 2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(np.array([0, 1]))[0][:] = 9
    np.testing.assert_array_equal(first, kept)
    assert env.reset(options={"reset_mask": np.array([True, False])})[0].max() < 9


def test_threads_change_nothing() -> None:
    one, two = make_vec(RED_BALL, 200), make_vec(RED_BALL, 200, threads=2)
    assert_same([one.reset(seed=1)[0]], [two.reset(seed=1)[0]])
    assert_same(play(one, 100, 0), play(two, 100, 0))
    before = threading.active_count()
    two.close()
    assert threading.active_count() < before


def test_gymnasium_finds_the_engine() -> None:
    vector = gym.make_vec(RED_BALL, 2)
    single = gym.make(RED_BALL, render_mode="rgb_array")
    views, _ = vector.reset(seed=5)
    view, _ = single.reset(seed=5)
    np.testing.assert_array_equal(views[0], view)
    assert vector.observation_space.contains(views)
    assert type(vector.unwrapped).__name__ == "BabyAIVectorEnv"
    assert type(single.unwrapped).__name__ == "SingleEnv"


@pytest.mark.parametrize(
    "env_id", [*LEVELS, "BabyAI-BossLevel-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"]
)
def test_single_env_passes_the_checker(env_id: str) -> None:
    check_env(make(env_id, render_mode="rgb_array"), skip_render_check=True)


def test_single_env_equals_minigrid() -> None:
    ours, theirs = make(RED_BALL, render_mode="rgb_array"), make(RED_BALL, backend="reference", render_mode="rgb_array")
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(ours.reset(seed=8)[0], theirs.reset(seed=8)[0])
    for _ in range(900):
        action = int(rng.integers(7))
        mine, other = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(mine[0], other[0])
        assert mine[1:] == other[1:]
        if mine[2] or mine[3]:
            np.testing.assert_array_equal(ours.render(), theirs.render())
            np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
            assert ours.mission == theirs.mission  # type: ignore[attr-defined]
            stream = equality.stream_in(ours.unwrapped.envs.engine, 0)  # type: ignore[attr-defined]
            assert stream.bit_generator.state == theirs.np_random.bit_generator.state
    with pytest.raises(ValueError, match=r"0\.\.6"):
        ours.step(7)


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param("BabyAI-KeyInBox-v0", marks=pytest.mark.slow),
        "MiniGrid-LavaGapS5-v0",
        "BabyAI-PutNextS5N2Carrying-v0",
    ],
)
def test_pictures_equal_minigrids(env_id: str) -> None:
    ours, theirs = make(env_id, render_mode="rgb_array"), make(env_id, backend="reference", render_mode="rgb_array")
    rng = np.random.default_rng(1)
    ours.reset(seed=2)
    theirs.reset(seed=2)
    for _ in range(40):
        np.testing.assert_array_equal(ours.render(), theirs.render())
        action = int(rng.integers(7))
        ended = ours.step(action)[2]
        theirs.step(action)
        if ended:
            ours.reset()
            theirs.reset()


@pytest.mark.parametrize(
    "env_id",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in (RED_BALL, "BabyAI-Unlock-v0")),
        "MiniGrid-LavaGapS5-v0",
        "MiniGrid-Dynamic-Obstacles-5x5-v0",
        "MiniGrid-GoToDoor-8x8-v0",
    ],
)
def test_pictures_are_minigrids_own_whatever_was_drawn_before(env_id: str) -> None:
    native = make_vec(env_id, 2)
    theirs = [make(env_id, backend="reference", render_mode="rgb_array") for _ in range(2)]
    native.reset(seed=5)
    for number, one in enumerate(theirs):
        one.reset(seed=5 + number)
    rng = np.random.default_rng(0)
    for _ in range(60):
        for index, one in enumerate(theirs):
            np.testing.assert_array_equal(native.frame(index), one.render())
        actions = rng.integers(0, len(native.env_spec.action_names), 2)
        native.step(actions)
        for action, one in zip(actions, theirs, strict=True):
            if one.step(action)[2]:
                one.reset()


def test_a_picture_is_of_an_episode() -> None:
    with pytest.raises(RuntimeError, match="before reset"):
        make_vec(RED_BALL, 1).frame(0)


def test_memory() -> None:
    env = make_vec("BabyAI-Text-GoToLocal-RedBall-S30", 4096)
    env.reset(seed=0)
    assert sum(array.nbytes for array in env.snapshot().values()) < 50e6
    small = make_vec(RED_BALL, 4096)
    small.reset(seed=0)
    assert sum(array.nbytes for array in small.snapshot().values()) < 25e6


def test_views_are_drawn_from_the_state_alone() -> None:
    env = make_vec(RED_BALL, 3)
    views, _ = env.reset(seed=0)
    engine = env.engine  # type: ignore[attr-defined]
    again = np.zeros_like(engine.observations)
    look = kernel(observe.py_func)  # type: ignore[attr-defined]
    for n in range(3):
        look(engine._grids[n], engine.envs[n], engine._stride, again[n])
    np.testing.assert_array_equal(again.reshape(views.shape), views)


def test_an_agent_with_objects_on_all_sides_is_placed_nowhere() -> None:
    """One free cell in a room of balls: minigrid tries for ever; here the layout is drawn anew."""
    env = make_vec(RED_BALL, 1)
    env.reset(seed=0)
    record = env.engine.envs[0]  # type: ignore[attr-defined]
    place, stride = kernel(place_agent.py_func), 20  # type: ignore[attr-defined]
    grid = np.full(stride * stride, WALL, np.uint32)
    inside = np.array([(5 + y) * stride + 5 + x for y in range(1, 4) for x in range(1, 4)])
    grid[inside] = BALL
    grid[inside[4]] = EMPTY
    assert not place(grid, record, 5 * stride + 5, 5, stride)
    grid[inside[5]] = WALL  # something to look at
    assert place(grid, record, 5 * stride + 5, 5, stride)
    assert (record["agent"], record["heading"]) == (inside[4], 0)
