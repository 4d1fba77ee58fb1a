"""The bot: an expert for every mission of BabyAI and the rooms of MiniGrid, for N envs at once."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.envs.babyai.bot.plan import act_bots

MAX_CELLS: Final = 8192
"""Of a grid, margins included. The largest room that GLAM's levels can be given has 6,882."""


class BabyAIBot:
    """See `family.Bot`. It knows the mission, what it carries, and the cells that it has seen.

    Args:
        num_actions: where there are fewer than six, it can only move.
    """

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def begin(self, num_envs: int) -> dict[str, NDArray[Any]]:
        """Nothing seen."""
        return {
            "explored": np.zeros((num_envs, MAX_CELLS // 8), np.uint8),
            "idle": np.zeros(num_envs, np.int32),
            "done": np.zeros(num_envs, np.int32),
            "spot": np.zeros(num_envs, np.int32),
        }

    def act(
        self,
        env_states: NDArray[Any],
        symbols: NDArray[np.uint8],
        memory: dict[str, NDArray[Any]],
        started: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        N, (height, stride) = len(env_states), env_states.dtype["grid"].shape
        if height * stride > MAX_CELLS:
            raise UsageError(f"A map of {height} × {stride} cells is too large for the bot; choose smaller rooms.")
        actions = np.zeros(N, np.int64)
        act_bots(
            np.ascontiguousarray(env_states["grid"]).reshape(N, -1),
            np.ascontiguousarray(env_states["world"]),
            np.ascontiguousarray(symbols).reshape(N, -1),
            started,
            memory["explored"],
            memory["idle"],
            memory["done"],
            memory["spot"],
            stride,
            self.num_actions,
            actions,
        )
        return actions
