"""What streams of novelty have in common: what they score, how inputs are normalised, and the scale of what is paid.

What is scored is s_{t+1}, the true last observation where an episode ended. Returns of novelty run on across episodes,
and rewards are divided by the running standard deviation of their discounted sum along time (Burda et al. 2018). Where
all sums are the same so far, as after the one step of a first rollout of one env, nothing is paid.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.agents.networks.layers import Linear
from bkrl.agents.weights import load_weights
from bkrl.data.windows import Rollout
from bkrl.rewards.streams import RewardStream

CLIP = 5.0
"""Normalised observations are clipped to ± this."""
HIDDEN, FEATURES = 128, 64
"""Width of the networks' layers, and how many features they make of an observation."""
LEAST_SPREAD = 1e-5
"""A spread below this part of the novelty is rounding: of n sums that differ it is about 1 / √n or more."""


class RunningMoments:
    """Mean and variance over everything seen so far, entry by entry (Chan et al., 1979), in float64."""

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def update(self, batch: np.ndarray, times: np.ndarray | None = None) -> None:
        """Take in (B, *shape) values, value i as if it came `times[i]` times (default: once)."""
        if len(batch) == 0:
            return
        weights = np.ones(len(batch)) if times is None else times.astype(np.float64)
        count = float(weights.sum())
        mean = np.tensordot(weights, batch, 1) / count
        squares = np.tensordot(weights, (batch - mean) ** 2, 1)
        delta, total = mean - self.mean, self.count + count
        self.mean = self.mean + delta * count / total
        self.squares = self.squares + squares + delta**2 * self.count * count / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """The standard deviation."""
        return np.sqrt(self.squares / max(self.count, 1.0))

    def state(self, name: str) -> dict[str, np.ndarray | Tensor]:
        """All of it, as `NAME.…`."""
        return {f"{name}.count": np.array(self.count), f"{name}.mean": self.mean, f"{name}.squares": self.squares}

    def restore(self, name: str, state: Mapping[str, np.ndarray]) -> None:
        self.count = float(state[f"{name}.count"])
        self.mean, self.squares = state[f"{name}.mean"].copy(), state[f"{name}.squares"].copy()


class Novelty(RewardStream):
    """A stream of novelty. A subclass has a `name`, and says in `raw` how new the observations of a rollout are.

    It sets `networks`, by the prefixes of their names in a checkpoint; what is not frozen in them is trained.

    Args:
        obs_shape: of the observations in the rollout, which are symbols whatever the policy sees.
        num_envs: N.
        gamma: discount of novelty.
        coef: weight of its advantage.
        device: where networks lie.
    """

    whole = "Novelty is divided by the spread of its discounted sum along time"
    episodic = False
    networks: dict[str, nn.Module]

    def __init__(
        self,
        obs_shape: Sequence[int],
        num_envs: int,
        *,
        gamma: float = 0.99,
        coef: float = 1.0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.gamma, self.coef, self.device = gamma, coef, torch.device(device)
        self.observed = RunningMoments(tuple(obs_shape))
        self.returned = RunningMoments()
        self.discounted = np.zeros(num_envs)
        self._mean = self._std = torch.zeros(0)
        self._metrics: dict[str, float] = {}

    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        """(T, N) how new what followed each action is, on any scale."""
        raise NotImplementedError

    def rewards(self, rollout: Rollout) -> NDArray[np.float32]:
        novelty = self.raw(rollout)
        returns = np.empty(novelty.shape)
        for t, row in enumerate(novelty):
            self.discounted = self.gamma * self.discounted + row
            returns[t] = self.discounted
        self.returned.update(returns.reshape(-1))
        scale = float(self.returned.std)
        same = scale <= LEAST_SPREAD * novelty.max()
        rewards = np.zeros_like(novelty) if same else novelty / max(scale, 1e-8)
        self._metrics = {
            f"{self.name}/novelty": float(novelty.mean()),
            f"{self.name}/reward": float(rewards.mean()),
            f"{self.name}/return_std": scale,
        }
        return rewards.astype(np.float32)

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)

    def observe(self, rows: NDArray[np.uint8], times: NDArray[np.int64] | None = None) -> None:
        """Take (B, *obs_shape) observations into the statistics; row i as if it came `times[i]` times."""
        self.observed.update(rows, times)
        self._mean = torch.from_numpy(self.observed.mean.astype(np.float32)).to(self.device)
        self._std = torch.from_numpy(self.observed.std.astype(np.float32)).clamp_min(1e-6).to(self.device)

    def normalised(self, rows: NDArray[np.uint8]) -> Tensor:
        """(B, *obs_shape) float32: what a network reads of observations, on the device."""
        observations = torch.from_numpy(rows).to(self.device)
        return ((observations.float() - self._mean) / self._std).clamp_(-CLIP, CLIP)

    def parameters(self) -> list[nn.Parameter]:
        return [p for network in self.networks.values() for p in network.parameters() if p.requires_grad]

    def state(self) -> dict[str, np.ndarray | Tensor]:
        tensors: dict[str, np.ndarray | Tensor] = {
            f"{name}.{key}": value
            for name, network in self.networks.items()
            for key, value in network.state_dict().items()
        }
        for name, moments in (("observed", self.observed), ("returned", self.returned)):
            tensors |= moments.state(name)
        return tensors | {"discounted": self.discounted}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for name, network in self.networks.items():
            load_weights(network, state, f"{name}.")
        for name, moments in (("observed", self.observed), ("returned", self.returned)):
            moments.restore(name, state)
        self.discounted = state["discounted"].copy()


def followings(rollout: Rollout) -> np.ndarray:
    """(T * N, *obs_shape) `Rollout.following`."""
    following = rollout.following()
    return following.reshape(-1, *following.shape[2:])


def transitions(rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(T * N, *obs_shape) what each action saw, (T * N,) int64 the action, and `followings`."""
    following = followings(rollout)
    return rollout.views.symbols[:-1].reshape(following.shape), rollout.actions.ravel(), following


def mlp(obs_shape: Sequence[int], outputs: int, generator: torch.Generator, depth: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(obs_shape)
    for _ in range(depth):
        layers += [Linear(width, HIDDEN), nn.ReLU()]
        width = HIDDEN
    network = nn.Sequential(*layers, Linear(width, outputs))
    for module in network:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(module.bias)
    return network
