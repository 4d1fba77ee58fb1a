"""Episodic novelty by a discriminative model (DEIR, Wan et al. 2023).

    e_i = encoder(s_i);  τ_i = gru(τ_{i-1}, e_i), 0 before an episode's first observation
    paid for action t: min over i ≤ t of ‖e_i − e_{t+1}‖² / (‖τ_{i-1} − τ_t‖ + ε)

So an observation is new where it is unlike every one of its episode, and counts for more where the way there was much
like the way to what it is compared with. The model learns to tell the true next observation of (τ_t, a_t) from another
one, which is drawn from a queue of observations that were new when they came. Which τ belongs to which e, and ε, follow
the authors' release. Two things differ: what is paid is scaled as every novelty here is, and the last observation of an
episode is the true one, where the release sees the next episode's first and leaves the step out of the loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bkrl.core.jit import kernel, write
from bkrl.data.windows import Rollout
from bkrl.rewards.novelty import FEATURES, Novelty, mlp, transitions

EPSILON = 1e-6
QUEUE = 100_000
"""So many observations are kept at most, from which the wrong ones are drawn."""


class Discriminator(nn.Module):
    """Whether an observation is what follows one of so many actions; `seed`: of the weights."""

    def __init__(self, obs_shape: Sequence[int], num_actions: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.num_actions = num_actions
        self.encoder = mlp(obs_shape, FEATURES, generator)
        self.gru = nn.GRUCell(FEATURES, FEATURES)
        for name, weights in self.gru.named_parameters():
            nn.init.orthogonal_(weights, generator=generator) if "weight" in name else nn.init.zeros_(weights)
        self.head = mlp((2 * FEATURES + num_actions,), 1, generator)

    def ways(self, embeddings: Tensor, began: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
        """The ways τ along (T, N, F) embeddings: (T, N, F) before each observation, and (T, N, F) with it.

        Args:
            embeddings: e of what each action saw.
            began: (T, N) bool, whether an episode begins there.
            way: (N, F) τ so far.
        """
        before, after = [], []
        for row, fresh in zip(embeddings, began, strict=True):
            before.append(torch.where(fresh[:, None], 0.0, way))
            way = self.gru(row, before[-1])
            after.append(way)
        return torch.stack(before), torch.stack(after)

    def forward(self, way: Tensor, seen: Tensor, actions: Tensor, followings: Sequence[Tensor]) -> Tensor:
        """(K, B) logits, from τ before `seen` (B, F), (B, *obs_shape), (B,) int64, and K times (B, *obs_shape)."""
        K = len(followings)
        here = self.gru(self.encoder(seen), way)
        known = torch.cat([here, nn.functional.one_hot(actions, self.num_actions).to(here.dtype)], 1).repeat(K, 1)
        there = self.gru(self.encoder(torch.cat(list(followings))), here.repeat(K, 1))
        return self.head(torch.cat([known, there], 1)).reshape(K, -1)


class DEIR(Novelty):
    """The novelty stream; arguments as for `Novelty`, the number of actions and the seed of weights and draws."""

    name = "deir"

    def __init__(
        self, obs_shape: Sequence[int], num_envs: int, *, num_actions: int, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(obs_shape, num_envs, **options)
        self.seed, self.rollouts = seed, 0
        self.model = Discriminator(obs_shape, num_actions, seed).to(self.device)
        self.networks = {"model": self.model}
        self.queue = np.zeros((0, *obs_shape), np.uint8)
        self._way = torch.zeros(num_envs, FEATURES, device=self.device)
        # Of each env's running episode: e_i beside τ_{i-1}, and how many there are
        self._episodes = np.zeros((num_envs, 64, 2 * FEATURES), np.float32)
        self._lengths = np.zeros(num_envs, np.int64)
        self._random = np.random.default_rng(seed)
        # Of the last rollout: what each action saw and what followed, and τ before the first of them
        self._seen, self._following = np.zeros((2, 0, *obs_shape), np.uint8)
        self._ways, self._actions = torch.zeros(0), torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def raw(self, rollout: Rollout) -> NDArray[np.floating]:
        self._seen, actions, self._following = transitions(rollout)
        steps, envs = rollout.rewards.shape
        self.observe(self._following)
        self._actions = torch.from_numpy(actions).to(self.device)
        here, there = (
            self.model.encoder(self.normalised(rows)).reshape(steps, envs, -1) for rows in (self._seen, self._following)
        )
        began = rollout.ages[:-1] == 0
        before, after = self.model.ways(here, torch.from_numpy(began).to(self.device), self._way)
        self._ways, self._way = before.reshape(steps * envs, -1), after[-1]
        missing = int(self._lengths.max(initial=0)) + steps + 1 - self._episodes.shape[1]
        if missing > 0:
            grown = max(missing, self._episodes.shape[1])
            self._episodes = np.pad(self._episodes, ((0, 0), (0, grown), (0, 0)))
        saw, came, ways = (one.cpu().numpy() for one in (here, there, after))
        found = _distances(saw, came, ways, began, self._episodes, self._lengths, np.float32(EPSILON))
        new = found.ravel() >= found.mean() if self.rollouts else np.ones(steps * envs, bool)
        self.queue = np.concatenate([self.queue, self._following[new]])[-QUEUE:]
        self.rollouts += 1
        self._random = np.random.default_rng((self.seed, self.rollouts))
        return found

    def loss(self, index: Tensor) -> Tensor:
        """Cross-entropy of the true next observations and, in equal shares, of as many wrong ones.

        A wrong one is the first of two draws that is no true one; steps where both are the true one have none.
        """
        rows = index.cpu().numpy()
        true = self._following[rows]
        one, two = self.queue[self._random.integers(len(self.queue), size=(2, len(rows)))]
        axes = tuple(range(1, true.ndim))
        same = (one == true).all(axis=axes)
        wrong = np.where(same.reshape(-1, *[1] * (true.ndim - 1)), two, one)
        told = torch.from_numpy(~(wrong == true).all(axis=axes)).to(self.device)
        seen, actions, ways = self.normalised(self._seen[rows]), self._actions[index], self._ways[index]
        yes, no = self.model(ways, seen, actions, [self.normalised(true), self.normalised(wrong)])
        right, refused = nn.functional.softplus(-yes), nn.functional.softplus(no) * told
        return 0.5 * (right.mean() + refused.sum() / told.sum().clamp_min(1))

    def state(self) -> dict[str, np.ndarray | Tensor]:
        longest = int(self._lengths.max(initial=1))
        return super().state() | {
            "queue": self.queue,
            "way": self._way,
            "episodes": self._episodes[:, :longest],
            "lengths": self._lengths,
            "rollouts": np.array(self.rollouts),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        self.queue, self.rollouts = state["queue"].copy(), int(state["rollouts"])
        self._way = torch.from_numpy(state["way"].copy()).to(self.device)
        self._episodes, self._lengths = state["episodes"].copy(), state["lengths"].copy()


@kernel
def _distances(here, there, ways, began, episodes, lengths, epsilon):  # type: ignore[no-untyped-def]
    """(T, N) float32 what is paid; `episodes` and `lengths` take the rollout in."""
    steps, envs, width = here.shape
    paid = np.empty((steps, envs), np.float32)
    for n in range(envs):
        past = episodes[n]
        for t in range(steps):
            if began[t, n] or lengths[n] == 0:
                write(past[0, :width], here[t, n])
                past[0, width:], lengths[n] = 0.0, 1
            least = np.float32(np.inf)
            for i in range(lengths[n]):
                apart, way = np.float32(0.0), np.float32(0.0)
                for f in range(width):
                    apart += (past[i, f] - there[t, n, f]) ** 2
                    way += (past[i, width + f] - ways[t, n, f]) ** 2
                least = min(least, apart / (np.sqrt(way) + epsilon))
            paid[t, n] = least
            write(past[lengths[n], :width], there[t, n])
            write(past[lengths[n], width:], ways[t, n])
            lengths[n] += 1
    return paid
