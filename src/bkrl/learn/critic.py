"""Fitting the critic of a language model apart from PPO: on states that are computed once, until it has learnt.

PPO makes some sixteen updates of a rollout, and a value head that starts from nothing needs hundreds. Its updates cost
nothing beside the model's, so it makes as many as lower the error on a quarter of the envs, which take turns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.agents.language.agent import LanguageAgent
from bkrl.agents.language.heads import Critic
from bkrl.agents.networks.adam import Adam
from bkrl.core.seeds import derive_seed
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.losses import explained_variance
from bkrl.learn.on_rollouts import Diverged, moments, restore_moments
from bkrl.learn.rollout import Collector

HELD_OUT = 4
"""One env in so many, or with fewer envs one step in so many, shows how far the critic has learnt."""
EPOCHS, PATIENCE, BATCH = 20, 3, 256
"""At most so many passes over a rollout, so many of them in a row without a gain, and steps in a minibatch."""

RISE = 0.01
"""So much more of a rollout's variance must be explained than of the one before, for the critic to go on first."""


class CriticLearner:
    """Fits `Critic` to returns; `Stateful`.

    Args:
        agent: whose critic it is.
        learning_rate: Adam's.
        first: minibatches that the critic learns from, at most, before the policy moves; fewer where it explains no
            more of a rollout than of the one before.
        seed: of the order of steps.
    """

    def __init__(self, agent: LanguageAgent, *, learning_rate: float, first: int = 0, seed: int = 0) -> None:
        self.agent, self.first, self.seed = agent, first, seed
        self.critic: Critic = agent.module.heads["value"]
        self.parameters = list(self.critic.parameters())
        self.optimizer = Adam(self.parameters, lr=learning_rate, eps=1e-5)
        self.rollouts = self.updates = 0
        self.ready = first <= 0
        """Whether the policy may learn from what it says."""
        self.explained = -np.inf

    def learn(
        self, collector: Collector, values: Tensor, returns: Tensor, known: Tensor, hardware: Hardware = CPU
    ) -> dict[str, float]:
        """Fit a rollout.

        Args:
            collector: holds it.
            values: (T, N, K), what the critic said before: of a rollout that it has not learnt from.
            returns: (T, N, K).
            known: (T, N) bool, where a return holds rewards alone and nothing that the critic said.
            hardware: where the agent computes, and in which precision.
        """
        T, N = known.shape
        turn = torch.arange(N, device=known.device)
        if N < HELD_OUT:  # whole envs would leave nothing to learn from, or nothing held out
            turn = turn + torch.arange(T, device=known.device)[:, None]
        held = (turn + self.rollouts) % min(HELD_OUT, T + N - 1) == 0  # of the smallest rollouts each has some, too
        share = float(explained_variance(values[known], returns[known])) if known.sum() > 1 else 0.0
        figures = {"critic/explained_variance": share}
        risen = self.rollouts < 2 or share > self.explained + RISE  # the first rollout is before it has learnt anything
        self.explained = share
        with hardware.autocast():  # as it sees them when it acts
            states, numbers = self._states(collector)
        updates, figures["critic/held_out_loss"] = self.fit(
            states.index_select(0, numbers), returns.flatten(0, 1), held.expand(T, N).flatten()
        )
        self.rollouts += 1
        self.ready |= self.updates >= self.first or not risen
        return figures | {"critic/updates": float(updates)}

    @torch.no_grad()
    def _states(self, collector: Collector) -> tuple[Tensor, Tensor]:
        """(M, D) distinct states of a rollout as the model makes them now, and the number of each step's (S,)."""
        views = collector.views[: collector.num_steps].flat()
        if collector.repeats is None:
            numbers = torch.arange(len(views), device=collector.values.device)
        else:
            views, numbers = views[collector.repeats.first], torch.from_numpy(collector.repeats.numbers).flatten()
        return self.agent.states(self.agent.inputs(views)).float(), numbers

    def fit(self, states: Tensor, returns: Tensor, held: Tensor) -> tuple[int, float]:
        """Learn from states (S, D) and returns (S, K) but for those held out (S,); updates made, and the loss there.

        Raises:
            Diverged: the loss is not finite.
        """
        if not self.critic.prepared:
            self.critic.prepare(states, returns)
        spread = self.critic.scale
        order = torch.Generator(states.device).manual_seed(derive_seed(self.seed, "critic", self.rollouts))
        train, unseen = (~held).nonzero().flatten(), held.nonzero().flatten()

        def loss(rows: Tensor) -> Tensor:
            return ((self.critic(states[rows]) - returns[rows]) / spread).square().mean()

        with torch.no_grad():
            least = float(loss(unseen))
        best = [parameter.detach().clone() for parameter in self.parameters]
        updates = idle = 0
        for _ in range(EPOCHS):
            shuffled = train[torch.randperm(len(train), generator=order, device=states.device)]
            for rows in shuffled.split(BATCH):
                self.optimizer.zero_grad()
                loss(rows).backward()
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
                self.optimizer.step()
                updates += 1
            with torch.no_grad():
                now = float(loss(unseen))
            if not np.isfinite(now):
                raise Diverged("The critic diverged; begin again with --fresh and a smaller --critic-learning-rate.")
            idle = 0 if now < least else idle + 1
            if idle == 0:
                least, best = now, [parameter.detach().clone() for parameter in self.parameters]
            if idle == PATIENCE:
                break
        with torch.no_grad():
            for parameter, kept in zip(self.parameters, best, strict=True):
                parameter.copy_(kept)
            self.critic.shrink(states[unseen], returns[unseen])
            least = float(loss(unseen))
        self.updates += updates
        return updates, least

    def state(self) -> dict[str, Any]:
        return {
            "counters": np.array([self.rollouts, self.updates, self.ready, self.explained]),
            **moments(self.optimizer, self.parameters),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        rollouts, updates, ready, explained = state["counters"]
        self.rollouts, self.updates, self.ready, self.explained = int(rollouts), int(updates), bool(ready), explained
        restore_moments(self.optimizer, self.parameters, state)
