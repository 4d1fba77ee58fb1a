"""Playing whole episodes with a frozen policy: evaluation, recording, pictures.

Every episode has a seed of its own and is played to its end; none is left out because it was long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.envs.vector import WorldVectorEnv
from bkrl.rl.networks import ActorCritic
from bkrl.rng import derive_seed

_NOISE_STEPS = 32


@dataclass
class Episode:
    """One finished episode of T actions.

    Attributes:
        seed: what its world was seeded with.
        mission: its mission, "" if the world has none.
        observations: (T+1, *obs_shape) uint8, the true final one included; empty unless asked for.
        actions: (T,) int64; empty unless asked for.
        rewards: (T,) float32; empty unless asked for.
        frames: pictures, one for each observation but the final one; empty unless asked for.
    """

    seed: int
    mission: str
    episode_return: float = 0.0
    length: int = 0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    observations: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    actions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rewards: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    frames: list[NDArray[np.uint8]] = field(default_factory=list)


@torch.no_grad()
def play(
    network: ActorCritic,
    envs: WorldVectorEnv,
    episodes: int,
    *,
    seed: int,
    greedy: bool = False,
    keep: bool = False,
    frames: int = 0,
    view: str = "symbolic",
    tick: Callable[[int], None] | None = None,
) -> Iterator[Episode]:
    """Play `episodes` episodes, seeded `seed`, `seed` + 1, …, and yield them in that order.

    A world whose episode ends takes the next seed. The noise of sampled actions belongs to the episode, so how many
    worlds there are changes nothing (but the rounding of batches of another size).

    Args:
        network: the policy; left as it is.
        envs: N worlds.
        greedy: take the likeliest action instead of sampling. A policy without memory often walks in circles then.
        keep: keep observations, actions and rewards.
        frames: keep pictures of the first so many episodes.
        view: the key of the observation the policy sees, where observations are dicts.
        tick: called with the number of episodes that have ended so far.
    """
    N = envs.num_envs
    device = next(network.parameters()).device
    raw, _ = envs.reset(seed=seed)
    missions = envs.missions()
    running: dict[int, _Running] = {
        i: _Running(Episode(seed=seed + i, mission=missions[i]), keep) for i in range(min(N, episodes))
    }
    begun = len(running)
    waiting: dict[int, Episode] = {}  # ended, but one before them has not
    told = given = 0
    while running:
        worlds = np.fromiter(running, np.int64, len(running))
        seen = raw[view] if isinstance(raw, dict) else raw
        logits = network(torch.from_numpy(seen[worlds]).to(device))[0]
        if not greedy:
            logits = logits + torch.stack([one.noise(logits.shape[1]) for one in running.values()]).to(device)
        actions = np.zeros(N, np.int64)
        actions[worlds] = logits.argmax(1).cpu().numpy()
        symbols = _symbols(raw)
        for i, one in running.items():
            if one.episode.seed - seed < frames:
                one.episode.frames.append(envs.frame(i))
            one.before(symbols[i], actions[i])
        raw, rewards, terminated, truncated, infos = envs.step(actions)
        next_seeds: dict[int, int] = {}
        for i in worlds.tolist():
            one = running[i]
            one.after(rewards[i])
            if not (terminated[i] or truncated[i]):
                continue
            one.episode.terminated, one.episode.truncated = bool(terminated[i]), bool(truncated[i])
            one.episode.success = bool(infos["success"][i])
            one.episode.episode_return = float(infos["episode"]["r"][i])
            one.episode.length = int(infos["episode"]["l"][i])
            one.end(_symbols(infos["final_obs"])[i])
            waiting[one.episode.seed] = running.pop(i).episode
            if begun < episodes:
                next_seeds[i] = seed + begun
                begun += 1
        if next_seeds:
            mask = np.zeros(N, bool)
            mask[list(next_seeds)] = True
            raw, _ = envs.reset(
                seed=[next_seeds.get(i) for i in range(N)],  # type: ignore[arg-type]
                options={"reset_mask": mask},
            )
            missions = envs.missions()
            running |= {i: _Running(Episode(seed=s, mission=missions[i]), keep) for i, s in next_seeds.items()}
        if tick is not None and begun - len(running) > told:
            told = begun - len(running)
            tick(told)
        while seed + given in waiting:
            yield waiting.pop(seed + given)
            given += 1


class _Running:
    """An episode being played, and its own action noise."""

    def __init__(self, episode: Episode, keep: bool) -> None:
        self.episode, self.keep = episode, keep
        self.generator = torch.Generator().manual_seed(derive_seed(episode.seed, "actions"))
        self.chunk = torch.zeros(0, 0)
        self.used = 0
        self.observations: list[NDArray[np.uint8]] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []

    def noise(self, num_actions: int) -> torch.Tensor:
        """(A,) Gumbel noise for the next action."""
        if self.used == len(self.chunk):
            self.chunk = torch.empty(_NOISE_STEPS, num_actions).exponential_(generator=self.generator).log_().neg_()
            self.used = 0
        self.used += 1
        return self.chunk[self.used - 1]

    def before(self, observation: NDArray[np.uint8], action: int) -> None:
        if self.keep:
            self.observations.append(observation.copy())
            self.actions.append(int(action))

    def after(self, reward: float) -> None:
        if self.keep:
            self.rewards.append(float(reward))

    def end(self, observation: NDArray[np.uint8]) -> None:
        if self.keep:
            self.episode.observations = np.stack([*self.observations, observation])
            self.episode.actions = np.array(self.actions, np.int64)
            self.episode.rewards = np.array(self.rewards, np.float32)


def summarise(episodes: list[Episode], prefix: str = "eval/") -> dict[str, float]:
    """Means of `success_rate`, `return` and `length`."""
    return {
        f"{prefix}success_rate": float(np.mean([e.success for e in episodes])),
        f"{prefix}return": float(np.mean([e.episode_return for e in episodes])),
        f"{prefix}length": float(np.mean([e.length for e in episodes])),
    }


def _symbols(observations: object) -> NDArray[np.uint8]:
    return observations["symbolic"] if isinstance(observations, dict) else observations  # type: ignore[return-value]
