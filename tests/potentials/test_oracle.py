"""Oracles: programs that know a task's target, as far as it is in sight."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.core.errors import UsageError
from bkrl.data.distinct import number
from bkrl.data.windows import Windows
from bkrl.envs import world
from bkrl.envs.babyai.levels import LEVELS
from bkrl.envs.crafter import layout
from bkrl.potentials.code import CodeRaw
from bkrl.potentials.controls import oracle_program
from bkrl.sandbox.check import check_program

RED, BALL, KEY = 0, 6, 5


def values(env_id: str, views: np.ndarray) -> np.ndarray:
    raw = CodeRaw(oracle_program(env_id), views.shape[1:], 0)
    count = len(views)
    try:
        return raw(number(Windows(views[:, None], np.zeros((count, 0), np.int64), np.ones((count, 1), bool))))
    finally:
        raw.close()


def test_only_the_target_counts_and_the_nearer_it_is_the_better():
    views = np.ones((4, 7, 7, 3), np.uint8)
    views[0, 3, 5] = BALL, RED, 0  # straight ahead
    views[1, 1, 3] = BALL, RED, 0  # two to the left, three ahead
    views[2, 3, 5] = KEY, RED, 0
    assert values("BabyAI-Text-GoToLocal-RedBall-S20", views).tolist() == [-1, -5, -14, -14]


def test_crafters_oracle_wants_wood_first_and_then_the_table():
    views = np.zeros((3, *layout.OBS_SHAPE), np.uint8)
    views[1:, layout.INDEX["wood"]] = 4
    views[2, layout.PLAYER_CELL + 1] = layout.CELL["table"]
    none, wood, there = values("Crafter-Text-MakeWoodPickAxe", views)
    assert none < wood < there


@pytest.mark.parametrize("env_id", [*LEVELS, "Crafter-Text-CollectDrink", "Crafter-Text-EatCow"])
def test_every_oracle_passes_the_static_check(env_id):
    assert world(env_id)
    check_program(oracle_program(env_id))


def test_a_task_without_an_oracle_is_refused():
    with pytest.raises(UsageError, match="Did you mean"):
        oracle_program("BabyAI-Text-GoToLocal-RedBal-S20")
    with pytest.raises(UsageError, match="No oracle"):
        oracle_program("Crafter-Text-Reward")
