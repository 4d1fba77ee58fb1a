"""The published levels on PyPI minigrid."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core import constants as minigrid_constants
from minigrid.core.actions import Actions

from bkrl.core.errors import UsageError
from bkrl.envs import env_spec, make
from bkrl.envs.babyai import FAMILY, constants
from bkrl.envs.babyai.levels import LEVELS
from bkrl.envs.babyai.reference import describe, make_minigrid

LEVEL_GEN = "minigrid.envs.babyai.core.levelgen:LevelGen"
PYPI_SAMPLE = [
    "BabyAI-BossLevel-v0",
    "BabyAI-KeyInBox-v0",
    "MiniGrid-LavaGapS5-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
]


def test_constants_are_those_of_minigrid() -> None:
    names = {i: name for name, i in minigrid_constants.OBJECT_TO_IDX.items()}
    assert tuple(names[i] for i in range(len(names))) == constants.TYPE_NAMES
    assert {name: i for i, name in enumerate(constants.COLOR_NAMES)} == minigrid_constants.COLOR_TO_IDX
    assert [constants.COLOR_NAMES[i] for i in constants.COLORS_AS_DRAWN] == minigrid_constants.COLOR_NAMES
    assert {name: i for i, name in enumerate(constants.STATE_NAMES)} == minigrid_constants.STATE_TO_IDX
    assert tuple(action.name for action in Actions) == constants.ACTION_NAMES


@pytest.mark.parametrize("env_id", [*LEVELS, *PYPI_SAMPLE])
def test_gymnasium_checker(env_id: str) -> None:
    check_env(make(env_id, backend="reference", render_mode="rgb_array"), skip_render_check=True)


EXPECTED = {
    "BabyAI-Text-GoToLocal-RedBall-S20": (400, 1 + 7, "go to {} red ball"),
    "BabyAI-Text-GoToLocal-PurpleKey-S23": (529, 1 + 12, "go to {} purple key"),
    "BabyAI-Text-GoToLocal-RedBall-S25": (625, 1 + 15, "go to {} red ball"),
    "BabyAI-Text-GoToLocal-PurpleKey-S28": (784, 1 + 20, "go to {} purple key"),
    "BabyAI-Text-GoToLocal-RedBall-S30": (900, 1 + 25, "go to {} red ball"),
    "BabyAI-Text-GoTo-RedBallBlueBox-S20": (800, 2 + 7, "go to {} red ball, then go to {} blue box"),
    "BabyAI-Text-GoTo-PurpleBallGreenKey-S20": (800, 2 + 7, "go to {} purple ball, then go to {} green key"),
    "BabyAI-Text-PickUp-PurpleKey-S20": (400, 1 + 8, "pick up {} purple key"),
}


@pytest.mark.parametrize("env_id", EXPECTED)
def test_missions_sizes_and_limits(env_id: str) -> None:
    max_steps, objects, mission = EXPECTED[env_id]
    assert {w.env_id: w.max_steps for w in FAMILY.specs()}[env_id] == max_steps
    env = make(env_id, backend="reference")
    for seed in range(3):
        env.reset(seed=seed)
        assert env.inner.max_steps == max_steps
        assert sum(cell is not None and cell.type != "wall" for cell in env.inner.grid.grid) == objects
        assert env.mission.replace(" a ", " the ") == mission.format("the", "the")


def test_pretraining_targets_come_from_the_seed() -> None:
    env = make("BabyAI-Text-GoToLocal-Pretraining-S20", backend="reference")

    def missions() -> list[str]:
        env.reset(seed=5)
        out = []
        for _ in range(60):
            env.reset()
            out.append(env.mission.replace(" a ", " the "))
        return out

    np.random.seed(0)
    first = missions()
    np.random.seed(1)
    assert missions() == first
    assert set(first) == {f"go to the {color} {kind}" for color in ("red", "green", "blue") for kind in ("ball", "box")}


def test_success_and_truncation() -> None:
    env = make("BabyAI-OneRoomS8-v0", backend="reference")
    env.reset(seed=0)
    for step in range(64):
        _, reward, terminated, truncated, info = env.step(constants.DONE)
        assert (reward, terminated, info["success"]) == (0, False, False)
        assert truncated == (step == 63)
    env = make("MiniGrid-Empty-5x5-v0", backend="reference")
    env.reset(seed=0)
    for action in (2, 2, 1, 2):
        assert not env.step(action)[4]["success"]
    _, reward, terminated, truncated, info = env.step(2)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert reward == pytest.approx(1 - 0.9 * 5 / 100)


def test_lava_ends_without_success() -> None:
    env = make("MiniGrid-LavaGapS5-v0", backend="reference")
    env.reset(seed=0)
    for _ in range(100):
        _, reward, terminated, _, info = env.step(int(env.np_random.integers(3)))
        if terminated:
            break
    assert terminated
    assert info["success"] == (reward > 0)


def test_stdout_stays_clean(capsys: pytest.CaptureFixture[str]) -> None:
    env = make("BabyAI-UnblockPickup-v0", backend="reference")  # rejects many layouts
    for seed in range(20):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""


def test_rendering() -> None:
    env = make("BabyAI-Text-GoToLocal-RedBall-S20", backend="reference", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (640, 640, 3)
    assert picture.dtype == np.uint8


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="Did you mean 'BabyAI-Text-GoToLocal-RedBall-S20'"):
        env_spec("BabyAI-Text-GoToLocal-RedBal-S20")
    assert FAMILY.find("CartPole-v1") is None
    with pytest.raises(UsageError, match="render mode"):
        make("BabyAI-GoToObj-v0", backend="reference", render_mode="human")
    env = make("BabyAI-GoToObj-v0", backend="reference")
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    before = env.inner.hash(), env.inner.step_count
    for action in (-1, 7, 1.5, "forward"):
        with pytest.raises(ValueError, match="actions must"):
            env.step(action)  # type: ignore[arg-type]
    assert (env.inner.hash(), env.inner.step_count) == before
    with pytest.raises(ValueError, match="reset option"):
        env.reset(options={"size": 5})


@pytest.mark.parametrize("kinds", [["and"], ["action", "seq"]])
def test_the_longest_mission_of_a_level_registered_by_others_is_known(kinds: list[str]) -> None:
    """Two tasks joined by "and" counted as one where a level asks for nothing else, halves of a sequence likewise."""
    rooms = {"room_size": 5, "num_rows": 1, "num_cols": 2, "num_dists": 4}
    gym.register("BabyAI-Mine-v0", LEVEL_GEN, kwargs={"instr_kinds": kinds, **rooms})
    try:
        env, longest = make_minigrid("BabyAI-Mine-v0"), 0
        for seed in range(30):
            env.reset(seed=seed)
            longest = max(longest, env.max_steps)
        assert longest <= describe("BabyAI-Mine-v0").max_steps
    finally:
        del gym.registry["BabyAI-Mine-v0"]


def test_any_minigrid_id() -> None:
    facts = env_spec("MiniGrid-Dynamic-Obstacles-5x5-v0")
    assert facts is not None
    assert facts.action_names == ("left", "right", "forward")
    boss = env_spec("BabyAI-BossLevel-v0")
    assert boss is not None
    env = make("BabyAI-BossLevel-v0", backend="reference")
    longest = 0
    for seed in range(30):
        env.reset(seed=seed)
        longest = max(longest, env.inner.max_steps)
    assert 576 < longest <= boss.max_steps == 8 * 64 * 9
    assert isinstance(env, gym.Env)
