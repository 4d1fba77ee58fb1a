"""BabyAI's levels by their recipes: the table is minigrid's, and so is every layout, mission and random stream."""

from __future__ import annotations

import os

import numpy as np
import pytest
from minigrid.minigrid_env import MiniGridEnv

from bkrl.core.errors import UsageError
from bkrl.envs import env_spec, make_vec
from bkrl.envs.babyai import FAMILY
from bkrl.envs.babyai.constants import WALL
from bkrl.envs.babyai.engine import BabyAIEngine
from bkrl.envs.babyai.loading import load
from bkrl.envs.babyai.pcg64 import write_stream
from bkrl.envs.babyai.recipes import RECIPES
from bkrl.envs.babyai.reference import FORK_ONLY, describe, make_minigrid
from bkrl.envs.babyai.state import ENV, KIND_MASK, MARGIN, OBJECT_MASK, WALL_CELL
from bkrl.envs.babyai.vector import BabyAIVectorEnv

EPISODES = int(os.environ.get("BKRL_LAYOUTS", "4"))
"""Episodes of each level; more by hand."""


def test_the_table_is_minigrids() -> None:
    assert sorted(RECIPES) == [env_id for env_id in FAMILY.other_ids() if env_id.startswith("BabyAI-")]
    for env_id, recipe in RECIPES.items():
        env = make_minigrid(env_id)
        assert (recipe.family, recipe.size) == (type(env).__name__, env.room_size)
        assert (recipe.columns, recipe.rows) == (env.num_cols, env.num_rows)
        assert recipe.max_steps == (env.max_steps if env.fixed_max_steps else None)


def test_the_facts_need_no_minigrid_and_are_the_same() -> None:
    for env_id in RECIPES:
        assert FAMILY.find(env_id) == describe(env_id)


@pytest.mark.parametrize("env_id", RECIPES)
def test_layouts_missions_and_streams_equal_minigrids(env_id: str) -> None:
    seed = 10_000 + sorted(RECIPES).index(env_id)
    native = make_vec(env_id, 1)
    assert isinstance(native, BabyAIVectorEnv)
    native.reset(seed=seed)
    env = make_minigrid(env_id)
    first = env.reset(seed=seed)[0]["image"]
    for _ in range(EPISODES):
        assert native.missions()[0] == env.mission
        np.testing.assert_array_equal(native.engine.observations[0], first.ravel())
        check_layout(native.engine, env)
        native.reset()
        first = env.reset()[0]["image"]


def check_layout(engine: BabyAIEngine, env: MiniGridEnv) -> None:
    """All that `load` reads from a minigrid env is what the kernels drew."""
    theirs, record = (
        np.full((env.height + 2 * MARGIN, env.width + 2 * MARGIN), WALL_CELL, np.uint32),
        np.zeros(1, ENV),
    )
    load(env, theirs, record[0])
    write_stream(record[0], env.np_random)
    ours = engine.snapshot()["grids"].reshape(theirs.shape)
    for grid in (ours, theirs):  # "a grey object" also means grey walls, which no task can be about
        grid[grid & KIND_MASK == WALL] &= OBJECT_MASK & 0xFFFF
    np.testing.assert_array_equal(ours, theirs)
    for name in ENV.names or ():
        if not name.startswith("target"):
            np.testing.assert_array_equal(engine.envs[0][name], record[0][name], err_msg=name)


@pytest.mark.parametrize(
    ("env_id", "here"),
    [
        ("BabyAI-1RoomS12-v0", "BabyAI-OneRoomS12-v0"),
        ("BabyAI-GoToObjS6-v0", "BabyAI-GoToObjS6-v1"),
        ("BabyAI-GoToLocalS8N16-v0", "BabyAI-MixedTrainLocal-v0@task_kinds=goto,num_dists=15"),
        ("BabyAI-PickupOpenPutNextMedium-v0", "BabyAI-SynthS5R2-v0"),
    ],
)
def test_levels_of_the_fork_are_refused_with_what_is_here_instead(env_id: str, here: str) -> None:
    with pytest.raises(UsageError, match=f"PyPI minigrid lacks; the nearest that is here is {here}"):
        make_vec(env_id, 1)


def test_what_is_here_instead_is_here() -> None:
    for here in FORK_ONLY.values():
        assert env_spec(f"BabyAI-{here}".replace(r"\1", "8")).max_steps
