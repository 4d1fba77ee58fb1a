"""Random network distillation (Burda et al., 2018): novelty is how badly a network predicts a fixed random one.

What is scored is s_{t+1}, the true last observation where an episode ended, and what is scored is what is trained on,
normalised and clipped in the same way. The observation statistics take in a rollout before it is scored, so the first
rewards are not judged by the statistics of nothing. Returns of novelty run on across episodes, and rewards are divided
by the running standard deviation of their discounted sum along time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.agents.networks import Linear
from bkrl.data.distinct import distinct_rows
from bkrl.data.windows import Rollout
from bkrl.rewards.streams import RolloutsOnly

_CHUNK = 4096


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


class RND(RolloutsOnly):
    """The novelty stream.

    Args:
        obs_shape: of the observations in the rollout, which are symbols whatever the policy sees.
        num_envs: N.
        gamma: discount of novelty.
        coef: weight of its advantage.
        seed: of both networks' weights.
        hidden, outputs: width of the networks, and how many random features there are to predict.
        clip: normalised observations are clipped to ± this.
        update_proportion: share of each minibatch that trains the predictor (so that it does not learn too fast).
    """

    why = "Novelty is divided by the spread of its discounted sum along time"
    name = "rnd"
    episodic = False
    horizon = 0

    def __init__(
        self,
        obs_shape: Sequence[int],
        num_envs: int,
        *,
        gamma: float = 0.99,
        coef: float = 1.0,
        seed: int = 0,
        hidden: int = 128,
        outputs: int = 64,
        clip: float = 5.0,
        update_proportion: float = 0.25,
        device: str | torch.device = "cpu",
    ) -> None:
        self.gamma, self.coef, self.clip, self.update_proportion = gamma, coef, clip, update_proportion
        generator = torch.Generator().manual_seed(seed)
        self.target = _network(obs_shape, hidden, outputs, 1, generator).to(device).requires_grad_(False)
        # The predictor is deeper than what it predicts, so that what remains of its error is novelty, not incapacity.
        self.predictor = _network(obs_shape, hidden, outputs, 2, generator).to(device)
        self.device = torch.device(device)
        self.observed = RunningMoments(tuple(obs_shape))
        self.returned = RunningMoments()
        self.discounted = np.zeros(num_envs)
        # Of the last rollout: its distinct observations, normalised; their random features; which of them came when.
        self._inputs = self._targets = torch.zeros(0)
        self._places = torch.zeros(0, dtype=torch.int64)
        self._mean = self._std = torch.zeros(0)
        self._metrics: dict[str, float] = {}

    def rewards(self, rollout: Rollout) -> np.ndarray:
        """(T, N) float32 normalised novelty of s_{t+1}."""
        following = next_observations(rollout)
        T, N = rollout.rewards.shape
        flat = following.reshape(T * N, *following.shape[2:])
        first, places = distinct_rows(flat)
        distinct = flat[first]
        self.observed.update(distinct, np.bincount(places))
        self._mean = torch.from_numpy(self.observed.mean.astype(np.float32)).to(self.device)
        self._std = torch.from_numpy(self.observed.std.astype(np.float32)).clamp_min(1e-6).to(self.device)
        self._inputs = self._normalised(torch.from_numpy(distinct).to(self.device))
        self._places = torch.from_numpy(places).to(self.device)
        with torch.no_grad():
            chunks = self._inputs.split(_CHUNK)
            self._targets = torch.cat([self.target(chunk) for chunk in chunks])
            predictions = torch.cat([self.predictor(chunk) for chunk in chunks])
            errors = (predictions - self._targets).square().mean(1)
            novelty = errors.cpu().numpy()[places].reshape(T, N)

        returns = np.empty((T, N))
        for t in range(T):
            self.discounted = self.gamma * self.discounted + novelty[t]
            returns[t] = self.discounted
        self.returned.update(returns.reshape(-1))
        scale = float(self.returned.std)
        rewards = novelty / max(scale, 1e-8)
        self._metrics = {
            "rnd/novelty": float(novelty.mean()),
            "rnd/reward": float(rewards.mean()),
            "rnd/return_std": scale,
        }
        return rewards.astype(np.float32)

    def parameters(self) -> Iterable[nn.Parameter]:
        """The predictor's."""
        return self.predictor.parameters()

    def loss(self, index: Tensor) -> Tensor:
        """Mean squared error on a part of the minibatch. `index` comes shuffled, so its first part is a random part."""
        places = self._places[index[: math.ceil(self.update_proportion * len(index))]]
        if self.device.type != "cpu":  # a GPU predicts the repeats sooner than it hears that they are some
            return (self.predictor(self._inputs[places]) - self._targets[places]).square().mean()
        which, times = places.unique(return_counts=True)
        inputs, targets = self._inputs.index_select(0, which), self._targets.index_select(0, which)
        errors = (self.predictor(inputs) - targets).square().mean(1)
        return errors @ times.to(errors.dtype) / len(places)

    def metrics(self) -> dict[str, float]:
        """`rnd/novelty` (raw), `rnd/reward` (normalised), `rnd/return_std`."""
        return dict(self._metrics)

    def state(self) -> dict[str, np.ndarray | Tensor]:
        """Both networks and all running statistics."""
        tensors: dict[str, np.ndarray | Tensor] = {
            f"{name}.{key}": value
            for name, network in (("target", self.target), ("predictor", self.predictor))
            for key, value in network.state_dict().items()
        }
        for name, moments in (("observed", self.observed), ("returned", self.returned)):
            tensors |= {
                f"{name}.count": np.array(moments.count),
                f"{name}.mean": moments.mean,
                f"{name}.squares": moments.squares,
            }
        return tensors | {"discounted": self.discounted}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` returned."""
        for name, network in (("target", self.target), ("predictor", self.predictor)):
            prefix = f"{name}."
            network.load_state_dict(
                {key.removeprefix(prefix): torch.from_numpy(v) for key, v in state.items() if key.startswith(prefix)}
            )
        for name, moments in (("observed", self.observed), ("returned", self.returned)):
            moments.count = float(state[f"{name}.count"])
            moments.mean, moments.squares = state[f"{name}.mean"].copy(), state[f"{name}.squares"].copy()
        self.discounted = state["discounted"].copy()

    def _normalised(self, observations: Tensor) -> Tensor:
        return ((observations.float() - self._mean) / self._std).clamp_(-self.clip, self.clip)


def next_observations(rollout: Rollout) -> np.ndarray:
    """(T, N, *obs_shape): s_{t+1}, the true last observation where the episode ended, not the next one's first."""
    T, N, H = rollout.num_steps, rollout.num_envs, rollout.horizon
    following = rollout.observations[H + 1 : H + T + 1].copy()
    following.reshape(T * N, *following.shape[2:])[rollout.final_index] = rollout.final_observations
    return following


def _network(
    obs_shape: Sequence[int], hidden: int, outputs: int, depth: int, generator: torch.Generator
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(obs_shape)
    for _ in range(depth):
        layers += [Linear(width, hidden), nn.ReLU()]
        width = hidden
    network = nn.Sequential(*layers, Linear(width, outputs))
    for module in network:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(module.bias)
    return network
