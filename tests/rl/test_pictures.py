"""Policies that see Crafter as pictures, while reward streams read its symbols."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.config import PPOConfig
from bkrl.envs import make_vec
from bkrl.rl.policy import network_for
from bkrl.rl.ppo import PPO
from bkrl.rl.streams import EnvReward

CONFIG = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, update_epochs=1)


@pytest.mark.parametrize("network", ["paper", "compact"])
@pytest.mark.parametrize("length", [10_000, 5])
def test_trains_on_pictures_whether_an_episode_ends_or_not(network: str, length: int) -> None:
    envs = make_vec("Crafter-Text-PlaceCraftingTable", 4, observation="both", length=length)
    ppo = PPO(envs, network_for(network, envs, "image", 1, 0), [EnvReward()], CONFIG, total_steps=10**6, view="image")
    for _ in range(2):
        row = ppo.iterate()
        assert np.isfinite(row["ppo/value_loss"])
        assert (len(ppo.final_seen) > 0) == (length == 5)
        assert ppo.final_seen.shape[1:] == (64, 64, 3)
    envs.close()
