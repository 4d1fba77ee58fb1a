"""A GPU waits for the processor, and it for the GPU, only where an action or the figures of an iteration are read."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode

from bkrl.agents.build import new_agent
from bkrl.agents.networks.symbols import SymbolLayer
from bkrl.core.config import PPOConfig
from bkrl.envs import make_vec
from bkrl.learn.ppo import PPO
from bkrl.rewards.streams import EnvReward

CONFIG = PPOConfig(num_envs=16, num_steps=8, num_minibatches=4)
WAITS = {
    *("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__"),
    *("nonzero", "argwhere", "unique", "masked_select", "equal", "allclose", "is_nonzero"),
}
"""What a GPU has to have finished all before it for."""


class Waits(TorchFunctionMode):
    """Counts calls that would wait for a GPU, were the tensors there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = func.__name__
        if name in WAITS:
            self.seen[name] += 1
        if name in ("__getitem__", "__setitem__"):  # how many rows a mask has is not known before
            which = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.seen["mask"] += any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in which)
        return func(*args, **(kwargs or {}))


def as_on_a_gpu(ppo: PPO, monkeypatch: pytest.MonkeyPatch) -> PPO:
    """Without what is done on the processor alone: looking for repeats, and adding rows up by a kernel."""
    ppo.collector.look_once = False
    monkeypatch.setattr(SymbolLayer, "forward", lambda self, seen: self.one_hot(self._entries(seen)) @ self.weight)
    return ppo


@pytest.mark.parametrize("network", ["compact", pytest.param("paper", marks=pytest.mark.slow)])
def test_an_iteration_waits_for_each_action_and_once_for_its_figures(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make_vec("BabyAI-Text-GoToLocal-RedBall-S20", CONFIG.num_envs, max_steps=6)  # episodes are cut off, too
    agent = new_agent(network, envs, "symbolic", 1, 0)
    ppo = as_on_a_gpu(PPO(envs, agent, [EnvReward()], CONFIG, total_steps=10**6), monkeypatch)
    ppo.iterate()
    with Waits() as waits:
        metrics = ppo.iterate()
        ppo.warnings(metrics)
    assert metrics["rollout/episodes"] > 0
    assert +waits.seen == {"cpu": CONFIG.num_steps, "numpy": CONFIG.num_steps, "tolist": 1}


def test_waits_are_counted() -> None:
    """Each of these is seen, so that none of them is missed above."""
    x = torch.ones(3)
    with Waits() as waits:
        for read in (float, int, bool, torch.Tensor.item):
            assert read(x[0]) == 1
        assert x.tolist() == x.cpu().numpy().tolist()
        x[x > 0], x.nonzero(), x.unique()
        x[x > 2] = 0.0
    expected = {"__float__": 1, "__int__": 1, "__bool__": 1, "tolist": 1, "cpu": 1, "numpy": 1, "item": 1, "mask": 2}
    assert waits.seen == expected | {"nonzero": 1, "unique": 1}
