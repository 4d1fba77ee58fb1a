"""The intrinsic curiosity module (Pathak et al. 2017): novelty is how badly a model of the dynamics predicts.

    features φ = encoder(s);  â = inverse(φ, φ′);  φ̂′ = forward(φ, a);  paid: ½ ‖φ̂′ − φ′‖²

The encoder learns from the inverse model alone, so that it keeps what actions change and no more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.data.windows import Rollout
from bkrl.rewards.novelty import FEATURES, Novelty, mlp, transitions

BETA = 0.2
"""The loss is 1 − β of the inverse model's and β of the forward model's, as published."""


class Dynamics(nn.Module):
    """Encoder, inverse model and forward model of so many actions; `seed`: of the weights."""

    def __init__(self, obs_shape: Sequence[int], num_actions: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.num_actions = num_actions
        self.encoder = mlp(obs_shape, FEATURES, generator)
        self.inverse = mlp((2 * FEATURES,), num_actions, generator)
        self.ahead = mlp((FEATURES + num_actions,), FEATURES, generator)

    def surprise(self, before: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """(B,) ½ ‖φ̂′ − φ′‖², from (B, F) features and (B,) int64 actions."""
        taken = nn.functional.one_hot(actions, self.num_actions).to(before.dtype)
        return 0.5 * (self.ahead(torch.cat([before, taken], 1)) - after).square().sum(1)

    def losses(self, before: Tensor, actions: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Of (B, *obs_shape) normalised observations: cross-entropy of the actions, and mean surprise."""
        here, there = self.encoder(before), self.encoder(after)
        guess = self.inverse(torch.cat([here, there], 1))
        inverse = nn.functional.cross_entropy(guess, actions)
        return inverse, self.surprise(here.detach(), actions, there.detach()).mean()


class ICM(Novelty):
    """The novelty stream; arguments as for `Novelty`, the number of actions and the seed of the weights."""

    name = "icm"

    def __init__(
        self, obs_shape: Sequence[int], num_envs: int, *, num_actions: int, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(obs_shape, num_envs, **options)
        self.model = Dynamics(obs_shape, num_actions, seed).to(self.device)
        self.networks = {"model": self.model}
        # Of the last rollout: what was seen before and after each action, normalised, and the action.
        self._before = self._after = torch.zeros(0)
        self._actions = torch.zeros(0, dtype=torch.int64)

    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        self.take(rollout)
        with torch.no_grad():
            features = self.model.encoder(self._before), self.model.encoder(self._after)
            found = self.model.surprise(features[0], self._actions, features[1])
        return found.cpu().numpy().reshape(rollout.rewards.shape)

    def take(self, rollout: Rollout) -> None:
        """Hold a rollout, for `loss`."""
        seen, actions, following = transitions(rollout)
        self.observe(following)
        self._before, self._after = self.normalised(seen), self.normalised(following)
        self._actions = torch.from_numpy(actions).to(self.device)

    def loss(self, index: Tensor) -> Tensor:
        inverse, forward = self.model.losses(self._before[index], self._actions[index], self._after[index])
        return (1 - BETA) * inverse + BETA * forward
