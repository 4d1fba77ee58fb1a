"""Networks: shapes, encodings, initialisation, and what they refuse."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from bkrl.agents.build import new_agent
from bkrl.agents.networks import build_network, rebuild_network
from bkrl.agents.networks.symbols import SymbolLayer
from bkrl.core.documents import typed
from bkrl.core.errors import InputError, UsageError
from bkrl.envs import make_vec
from bkrl.envs.symbols import Symbols


@pytest.mark.parametrize(
    ("name", "obs_shape"),
    [
        ("compact", (7, 7, 3)),
        ("compact", (82,)),
        ("compact", (64, 64, 3)),
        ("paper", (7, 7, 3)),
        ("paper", (5, 5, 6)),
        ("paper", (64, 64, 3)),
        ("residual", (64, 64, 3)),
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
    weight = network.trunk[1].weight
    assert torch.allclose(weight @ weight.T, 2 * torch.eye(128), atol=1e-4)
    head = network.head.weight
    assert head[:7].norm(dim=1).allclose(torch.full((7,), 0.01), atol=1e-5)
    assert math.isclose(float(head[7:].detach().norm()), 1.0, abs_tol=1e-5)


def rows_of(symbols: Symbols, observation: list[int]) -> list[float]:
    layer = SymbolLayer(symbols, 2)
    entries = layer._entries(torch.tensor([observation], dtype=torch.uint8))
    return layer.one_hot(entries)[0].tolist()


def test_each_fact_has_its_row() -> None:
    symbols = Symbols.of_sizes([3, 0, 2])
    assert rows_of(symbols, [2, 51, 0]) == pytest.approx([0, 0, 1, 0.2, 1, 0])
    assert rows_of(symbols, [9, 255, 1]) == pytest.approx([0, 0, 1, 1.0, 0, 1])
    skipping = Symbols((3, 3), (1, -1), (-1, 0))
    assert rows_of(skipping, [2, 0]) == [0, 1, 1, 0, 0]
    assert rows_of(skipping, [1, 2]) == [0, 0, 0, 0, 0]  # the ordinary value has no row, and closes the gate
    pointing = Symbols((2, 4, 4), (-1, 0, 0), (-1, -1, -1), (0, (1, 2)))
    assert rows_of(pointing, [1, 3, 2])[-4:] == [0, 0, 1, 0]


def test_minigrid_views() -> None:
    """Floor is nothing, the unseen one fact, a wall two; red is a colour of things and not of nothing."""
    symbols = Symbols.of_minigrid(1)
    facts = {(1, 0, 0): 0, (0, 0, 0): 1, (2, 5, 0): 2, (6, 0, 0): 2, (4, 3, 2): 3}
    for view, count in facts.items():
        assert sum(rows_of(symbols, list(view))) == count, view
    assert rows_of(symbols, [6, 0, 0]) != rows_of(symbols, [6, 1, 0])


@pytest.mark.parametrize("env_id", ["BabyAI-Text-GoToLocal-RedBall-S20", "Crafter-Text-Reward", "Toy-Grid"])
def test_adding_rows_is_the_product_with_the_encoding(env_id: str) -> None:
    envs = make_vec(env_id, 2)
    observations, _ = envs.reset(seed=1)
    rng = np.random.default_rng(0)
    seen = [observations]
    for _ in range(10):
        seen.append(envs.step(rng.integers(0, envs.single_action_space.n, 2))[0])
    batch = torch.from_numpy(np.concatenate(seen))
    network = new_agent("compact", envs, "symbolic", 1, 0).module
    layer = network.encoder
    weights = torch.randn(len(batch), 128, generator=torch.Generator().manual_seed(0))
    (layer(batch) * weights).sum().backward()
    quick, gradient = layer(batch).detach(), layer.weight.grad.clone()
    layer.weight.grad = layer.bias.grad = None
    dense = layer.one_hot(layer._entries(batch)) @ layer.weight + layer.bias
    (dense * weights).sum().backward()
    assert torch.allclose(quick, dense, atol=1e-5)
    assert torch.allclose(gradient, layer.weight.grad, atol=1e-4)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_looking_changes_nothing(count: int) -> None:
    """Rows are added in place: into new memory, and never into the bias, also when there is one observation."""
    network = build_network("compact", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    views = torch.full((count, 7, 7, 3), 2, dtype=torch.uint8)
    with torch.no_grad():
        first = network(views)[0]
        assert torch.equal(network(views)[0], first)
    network(views)[0].sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_bounds_tell_categories_from_quantities() -> None:
    assert Symbols.of_bounds(np.array([1, 31, 32])).sizes == (2, 32, 0)
    assert Symbols.of_shape((7, 7, 3)).sizes[:3] == (11, 6, 4)
    assert Symbols.of_shape((2,)).sizes == (0, 0)
    symbols = Symbols((2, 4), (-1, 0), (-1, -1), (0, (1, 1)))
    assert typed(Symbols, json.loads(json.dumps(symbols.to_json()))) == symbols


def test_refusals() -> None:
    with pytest.raises(UsageError, match="no network 'big'"):
        build_network("big", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    with pytest.raises(UsageError, match="use --network compact"):
        build_network("paper", obs_shape=(82,), num_actions=7, num_values=1)
    for wrong in ({"obs_shape": (7, 7, 3)}, {"obs_shape": (64, 64, 3), "missions": True}):
        with pytest.raises(UsageError, match="pictures alone, and no missions"):
            build_network("residual", num_actions=7, num_values=1, **wrong)
    network = build_network("compact", obs_shape=(7, 7, 3), num_actions=7, num_values=1)
    with pytest.raises(InputError, match="do not fit"):
        rebuild_network(network.spec | {"num_actions": 6}, network.state_dict())
