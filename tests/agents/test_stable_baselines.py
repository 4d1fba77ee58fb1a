"""Stable-Baselines3 learns on our envs, made by `gymnasium.make`, and the same seed gives the same policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import bkrl.envs  # noqa: F401 - registers the ids


@pytest.mark.parametrize(
    ("env_id", "own"),
    [
        ("BabyAI-Text-GoToLocal-RedBall-S20", {}),
        ("bkrl/BabyAI-GoToLocal-v0", {}),
        ("Crafter-Text-EatCow", {"length": 40}),
    ],
)
def test_ppo(env_id: str, own: dict[str, Any]) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env

    check_env(gym.make(env_id, **own))
    weights = []
    for _ in range(2):
        envs = make_vec_env(env_id, 2, seed=1, env_kwargs=own)
        model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, seed=1, device="cpu").learn(256)
        assert model.num_timesteps == 256
        weights.append(np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()]))
    np.testing.assert_array_equal(*weights)
