"""Policies that see Crafter as pictures, while reward streams read its symbols."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bkrl.agents.build import new_agent, observation_options
from bkrl.agents.networks import build_network
from bkrl.agents.networks.layers import CELL_SIDE, Pixels
from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.envs import env_spec, make_vec
from bkrl.envs.crafter.layout import VIEW_COLUMNS
from bkrl.envs.crafter.rules import ACHIEVEMENTS
from bkrl.envs.crafter.textures import UNIT
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import EnvReward

CONFIG = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, update_epochs=1)


@pytest.mark.parametrize("network", ["paper", "compact", "residual"])
@pytest.mark.parametrize("length", [10_000, 5])
def test_trains_on_pictures_whether_an_episode_ends_or_not(network: str, length: int) -> None:
    envs = make_vec("Crafter-Text-PlaceCraftingTable", 4, observation="both", length=length)
    ppo = PPO(envs, new_agent(network, envs, "image", 1, 0), [EnvReward()], CONFIG, total_steps=10**6)
    for _ in range(2):
        row = ppo.iterate()
        assert np.isfinite(row["ppo/value_loss"])
        seen = ppo.collector.final_views.image
        assert (len(seen) > 0) == (length == 5)
        assert seen.shape[1:] == (64, 64, 3)
    envs.close()


def test_what_episodes_unlock_stands_in_the_metrics() -> None:
    envs = make_vec("CrafterReward-v1", 4, length=25)
    step, unlocked = envs.step, []

    def counted(actions: np.ndarray) -> tuple[Any, ...]:
        result = step(actions)
        unlocked.extend(result[4]["achievements"][result[4]["_achievements"]] > 0 if result[3].any() else ())
        return result

    envs.step = counted  # type: ignore[method-assign]
    config = replace(CONFIG, num_steps=50)
    row = PPO(envs, new_agent("compact", envs, "symbolic", 1, 0), [EnvReward()], config, total_steps=10**6).iterate()
    assert row["rollout/episodes"] == len(unlocked) == 8
    assert [row[f"rollout/unlocked/{name}"] for name in ACHIEVEMENTS] == np.mean(unlocked, 0).tolist()
    assert np.any(unlocked)
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "network", "view", "seen"),
    [
        ("Crafter-Text-PlaceCraftingTable", "compact", None, "symbolic"),
        ("Crafter-Text-PlaceCraftingTable", "compact", "symbolic", "symbolic"),
        ("Crafter-Text-PlaceCraftingTable", "compact", "image", "image"),
        ("Crafter-Text-PlaceCraftingTable", "paper", None, "image"),
        ("Crafter-Text-PlaceCraftingTable", "paper", "image", "image"),
        ("Crafter-Text-PlaceCraftingTable", "residual", None, "image"),
        ("BabyAI-Text-GoToLocal-RedBall-S20", "compact", None, "symbolic"),
        ("BabyAI-Text-GoToLocal-RedBall-S20", "paper", "symbolic", "symbolic"),
        ("Toy-Grid", "compact", "symbolic", "symbolic"),
    ],
)
def test_what_a_network_sees(env_id: str, network: str, view: str | None, seen: str) -> None:
    options, found = observation_options(env_spec(env_id), network, view)
    assert (options, found) == ({"observation": "both"} if seen == "image" else {}, seen)
    envs = make_vec(env_id, 1, **options)
    assert new_agent(network, envs, found, 1, 0).spec["name"] == network
    envs.close()


def test_what_it_cannot_see() -> None:
    with pytest.raises(UsageError, match="does not come as pictures"):
        observation_options(env_spec("Toy-Grid"), "compact", "image")
    with pytest.raises(UsageError, match="shows neither"):
        observation_options(env_spec("Crafter-Text-Reward"), "paper", "symbolic")
    with pytest.raises(UsageError, match="residual network"):
        observation_options(env_spec("Crafter-Text-Reward"), "residual", "symbolic")


def test_compact_looks_at_pictures_cell_by_cell() -> None:
    """Its squares are those that Crafter draws; what it makes of one depends on nothing else, and not on the place."""
    assert (CELL_SIDE, 64 // CELL_SIDE) == (UNIT, VIEW_COLUMNS)
    cells = build_network("compact", obs_shape=(64, 64, 3), num_actions=7, num_values=1).encoder[:-2]
    picture = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype(np.uint8))
    other = picture.clone()
    other[0, 2 * CELL_SIDE, 5 * CELL_SIDE] += 100  # a corner of one square
    other[0, 63, :], other[0, :, 63] = 0, 0  # the rim
    other[0, :CELL_SIDE, :CELL_SIDE] = other[0, -CELL_SIDE - 1 : -1, -CELL_SIDE - 1 : -1]
    with torch.no_grad():
        one, two = cells(picture)[0], cells(other)[0]
    changed = (one != two).any(0).nonzero().tolist()
    assert changed == [[0, 0], [2, 5]]
    assert torch.allclose(two[:, 0, 0], two[:, 8, 8], atol=1e-6)


def test_a_residual_block_begins_as_the_identity_and_then_sees_two_squares_far() -> None:
    network = build_network("residual", obs_shape=(64, 64, 3), num_actions=7, num_values=1)
    first, block = network.encoder[0], network.encoder[1]
    picture = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype(np.uint8))
    with torch.no_grad():
        squares = first(picture)
        kernel = first.product.weight.unflatten(1, (CELL_SIDE, CELL_SIDE, 3)).permute(0, 3, 1, 2)
        expected = torch.nn.functional.conv2d(Pixels([255.0] * 3)(picture), kernel, first.product.bias, CELL_SIDE)
        assert torch.allclose(squares, expected, atol=1e-5)
        assert squares.shape[2:] == (9, 9)
        assert torch.equal(block(squares), squares)
        torch.nn.init.normal_(block.conv2.weight, generator=torch.Generator().manual_seed(0))
        other = squares.clone()
        other[0, :, 4, 4] += 1.0
        changed = (block(squares) != block(other)).any(1)[0].nonzero()
    assert (changed.min(), changed.max(), len(changed)) == (2, 6, 25)
    expected = squares + block.conv2(block.conv1(squares.clamp_min(0)).clamp_min(0))
    assert torch.allclose(block(squares), expected)


@pytest.mark.parametrize("scale", [[255.0] * 3, [10.0, 5.0, 3.0]])
def test_pixels_are_divided_and_stay_as_they_are(scale: list[float]) -> None:
    picture = torch.arange(16 * 16 * 3, dtype=torch.uint8).view(1, 16, 16, 3)
    before = picture.clone()
    assert torch.equal(Pixels(scale)(picture), picture.permute(0, 3, 1, 2).float() / torch.tensor(scale).view(3, 1, 1))
    assert torch.equal(picture, before)
