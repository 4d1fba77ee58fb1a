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

    Args:
        network: the policy; left as it is.
        envs: N worlds; episodes are played N at a time.
        greedy: take the likeliest action instead of sampling. A policy without memory often walks in circles then.
        keep: keep observations, actions and rewards.
        frames: keep pictures of the first so many episodes.
        view: the key of the observation the policy sees, where observations are dicts.
        tick: called with the number of episodes that have ended so far.
    """
    N = envs.num_envs
    device = next(network.parameters()).device
    for wave in range(0, episodes, N):
        size = min(N, episodes - wave)
        seeds = [seed + wave + i for i in range(N)]
        noise = torch.Generator(device).manual_seed(derive_seed(seed, "actions", wave))
        raw, _ = envs.reset(seed=seed + wave)
        running = [Episode(seed=s, mission=m) for s, m in zip(seeds[:size], envs.missions(), strict=False)]
        active = np.zeros(N, bool)
        active[:size] = True
        observations: list[NDArray[np.uint8]] = []
        actions: list[NDArray[np.int64]] = []
        rewards: list[NDArray[np.float32]] = []
        while active.any():
            seen = raw[view] if isinstance(raw, dict) else raw
            logits = network(torch.from_numpy(np.ascontiguousarray(seen)).to(device))[0]
            if not greedy:
                logits = logits - torch.empty_like(logits).exponential_(generator=noise).log_()
            action = logits.argmax(1).cpu().numpy()
            for i in np.flatnonzero(active):
                if wave + i < frames:
                    running[i].frames.append(envs.frame(int(i)))
            if keep:
                observations.append(_symbols(raw))
                actions.append(action)
            raw, reward, terminated, truncated, infos = envs.step(action)
            if keep:
                rewards.append(reward)
            ended = np.flatnonzero((terminated | truncated) & active)
            for i in ended:
                episode = running[i]
                episode.episode_return = float(infos["episode"]["r"][i])
                episode.length = int(infos["episode"]["l"][i])
                episode.terminated, episode.truncated = bool(terminated[i]), bool(truncated[i])
                episode.success = bool(infos["success"][i])
                if keep:
                    rows = [step[i] for step in observations]
                    episode.observations = np.stack([*rows, _symbols(infos["final_obs"])[i]])
                    episode.actions = np.array([step[i] for step in actions], np.int64)
                    episode.rewards = np.array([step[i] for step in rewards], np.float32)
            active[ended] = False
            if tick is not None and len(ended):
                tick(wave + size - int(active.sum()))
        yield from running


def summarise(episodes: list[Episode], prefix: str = "eval/") -> dict[str, float]:
    """Means of `success_rate`, `return` and `length`."""
    return {
        f"{prefix}success_rate": float(np.mean([e.success for e in episodes])),
        f"{prefix}return": float(np.mean([e.episode_return for e in episodes])),
        f"{prefix}length": float(np.mean([e.length for e in episodes])),
    }


def _symbols(observations: object) -> NDArray[np.uint8]:
    return observations["symbolic"] if isinstance(observations, dict) else observations  # type: ignore[return-value]
