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

MOST_AT_ONCE = 128
"""So many episodes are worth playing side by side: a step of all costs little more than a step of a few."""

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
    noise = None if greedy else _Noise(N, int(envs.single_action_space.n))  # type: ignore[attr-defined]
    running: dict[int, Episode] = {}
    tapes: dict[int, _Tape] = {}
    waiting: dict[int, Episode] = {}  # ended, but one before them has not

    def begin(seeds: dict[int, int]) -> None:
        missions = envs.missions()
        for i, one in seeds.items():
            running[i] = Episode(seed=one, mission=missions[i])
            if noise is not None:
                noise.begin(i, one)
            if keep:
                tapes[i] = _Tape()
        if seed + episodes - 1 in seeds.values():  # the last to begin
            envs.rest(np.ones(N, bool))

    raw, _ = envs.reset(seed=seed)
    begin({i: seed + i for i in range(min(N, episodes))})
    begun = len(running)
    told = given = 0
    while running:
        worlds = np.fromiter(running, np.int64, len(running))
        seen = raw[view] if isinstance(raw, dict) else raw
        logits = network(torch.from_numpy(seen[worlds]).to(device))[0]
        if noise is not None:
            logits = logits + noise.next(worlds).to(device)
        actions = np.zeros(N, np.int64)
        actions[worlds] = logits.argmax(1).cpu().numpy()
        for i, episode in running.items() if frames else ():
            if episode.seed - seed < frames:
                episode.frames.append(envs.frame(i))
        symbols = _symbols(raw)
        raw, rewards, terminated, truncated, infos = envs.step(actions)
        for i, tape in tapes.items():
            tape.add(symbols[i], actions[i], rewards[i])
        next_seeds: dict[int, int] = {}
        for i in worlds[(terminated | truncated)[worlds]].tolist():
            episode = running.pop(i)
            episode.terminated, episode.truncated = bool(terminated[i]), bool(truncated[i])
            episode.success = bool(infos["success"][i])
            episode.episode_return = float(infos["episode"]["r"][i])
            episode.length = int(infos["episode"]["l"][i])
            if keep:
                tapes.pop(i).onto(episode, _symbols(infos["final_obs"])[i])
            waiting[episode.seed] = episode
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
            begin(next_seeds)
        if tick is not None and begun - len(running) > told:
            told = begun - len(running)
            tick(told)
        while seed + given in waiting:
            yield waiting.pop(seed + given)
            given += 1


class _Noise:
    """The Gumbel noise of sampled actions, a stream for each episode, drawn some steps ahead."""

    def __init__(self, num_envs: int, num_actions: int) -> None:
        self.generators = [torch.Generator() for _ in range(num_envs)]
        self.ahead = torch.zeros(num_envs, _NOISE_STEPS, num_actions)
        self.used = np.zeros(num_envs, np.int64)

    def begin(self, world: int, seed: int) -> None:
        """Another episode begins in a world."""
        self.generators[world].manual_seed(derive_seed(seed, "actions"))
        self.used[world] = _NOISE_STEPS

    def next(self, worlds: NDArray[np.int64]) -> torch.Tensor:
        """(B, A) noise for the next action in each of the worlds (B,)."""
        for world in worlds[self.used[worlds] == _NOISE_STEPS].tolist():
            self.ahead[world].exponential_(generator=self.generators[world]).log_().neg_()
            self.used[world] = 0
        noise = self.ahead[torch.from_numpy(worlds), torch.from_numpy(self.used[worlds])]
        self.used[worlds] += 1
        return noise


class _Tape:
    """What an episode saw, did and got, step by step."""

    def __init__(self) -> None:
        self.observations: list[NDArray[np.uint8]] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []

    def add(self, observation: NDArray[np.uint8], action: np.int64, reward: np.float32) -> None:
        self.observations.append(observation.copy())
        self.actions.append(int(action))
        self.rewards.append(float(reward))

    def onto(self, episode: Episode, last: NDArray[np.uint8]) -> None:
        """Give the episode its record, the last observation included."""
        episode.observations = np.stack([*self.observations, last])
        episode.actions = np.array(self.actions, np.int64)
        episode.rewards = np.array(self.rewards, np.float32)


def summarise(episodes: list[Episode], prefix: str = "eval/") -> dict[str, float]:
    """Means of `success_rate`, `return` and `length`."""
    return {
        f"{prefix}success_rate": float(np.mean([e.success for e in episodes])),
        f"{prefix}return": float(np.mean([e.episode_return for e in episodes])),
        f"{prefix}length": float(np.mean([e.length for e in episodes])),
    }


def _symbols(observations: object) -> NDArray[np.uint8]:
    return observations["symbolic"] if isinstance(observations, dict) else observations  # type: ignore[return-value]
