"""Networks: shapes, encodings, initialisation, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bkrl.errors import InputError, UsageError
from bkrl.rl.networks import OneHot, build_network, entry_sizes, rebuild_network


@pytest.mark.parametrize(
    ("name", "obs_shape"),
    [
        ("compact", (7, 7, 3)),
        ("compact", (82,)),
        ("compact", (64, 64, 3)),
        ("paper", (7, 7, 3)),
        ("paper", (64, 64, 3)),
    ],
)
def test_shapes_and_a_near_uniform_first_policy(name: str, obs_shape: tuple[int, ...]) -> None:
    network = build_network(name, obs_shape=obs_shape, num_actions=7, num_values=3, seed=1)
    rng = np.random.default_rng(0)
    observations = torch.from_numpy(rng.integers(0, 5, (11, *obs_shape)).astype(np.uint8))
    logits, values = network(observations)
    assert logits.shape == (11, 7)
    assert values.shape == (11, 3)
    assert logits.softmax(-1).min() > 0.1
    again = rebuild_network(network.spec, network.state_dict())
    assert torch.equal(again(observations)[0], logits)


def test_the_seed_and_nothing_else_decides_the_weights() -> None:
    torch.manual_seed(1)
    one = build_network("paper", obs_shape=(7, 7, 3), num_actions=7, num_values=1, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = build_network("paper", obs_shape=(7, 7, 3), num_actions=7, num_values=1, seed=5)
    three = build_network("paper", obs_shape=(7, 7, 3), num_actions=7, num_values=1, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), three.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_compact_layers_are_orthogonal() -> None:
    network = build_network("compact", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    weight = network.trunk[2].weight
    assert torch.allclose(weight @ weight.T, 2 * torch.eye(128), atol=1e-4)
    head = network.head.weight
    assert head[:7].norm(dim=1).allclose(torch.full((7,), 0.01), atol=1e-5)
    assert math.isclose(float(head[7:].detach().norm()), 1.0, abs_tol=1e-5)


def test_one_hot_puts_each_entry_in_its_place() -> None:
    encode = OneHot([3, 0, 2])
    rows = encode(torch.tensor([[2, 51, 0], [9, 255, 1]], dtype=torch.uint8))
    assert torch.allclose(rows, torch.tensor([[0, 0, 1, 1, 0, 0.2], [0, 0, 1, 0, 1, 1.0]]))
    views = torch.randint(0, 3, (4, 7, 7, 3), dtype=torch.uint8)
    assert OneHot(entry_sizes((7, 7, 3)))(views).sum(1).eq(147).all()


def test_entry_sizes_read_the_bounds() -> None:
    assert entry_sizes((3,), np.array([1, 31, 32])) == [2, 32, 0]
    assert entry_sizes((7, 7, 3))[:3] == [11, 6, 4]
    assert entry_sizes((2,)) == [0, 0]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="no network 'big'"):
        build_network("big", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    with pytest.raises(UsageError, match="use --network compact"):
        build_network("paper", obs_shape=(82,), num_actions=7, num_values=1)
    network = build_network("compact", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    with pytest.raises(InputError, match="do not fit"):
        rebuild_network(network.spec | {"num_actions": 6}, network.state_dict())
