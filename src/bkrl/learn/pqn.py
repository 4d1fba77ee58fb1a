"""PQN: Q-learning on rollouts, with normalised layers in place of a replay memory and a target network.

One iteration: T steps of N envs with ε-greedy actions, Q(λ) targets, epochs of regression on them. Source: Gallici et
al. 2024 (arXiv 2407.04811).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bkrl.agents.networks.adam import Adam
from bkrl.agents.q import QAgent
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.action_values import ActionValueLearner
from bkrl.learn.settings import PQNConfig
from bkrl.rewards.streams import RewardStream


def q_lambda_targets(rewards: Tensor, next_values: Tensor, carried: Tensor, gamma: float, q_lambda: float) -> Tensor:
    """Targets of Q(λ) (Peng and Williams 1996; cut as Watkins 1989 does where `carried` says so).

    G_t = r_t + γ [(1 − λ_t) max_a Q(s_{t+1}, a) + λ_t G_{t+1}], with λ_t = λ where `carried`, otherwise 0. What is
    bootstrapped is the value of the state in which the next transition begins.

    With two steps and nothing carried over the end: G_1 = r_1 + γ v_2, G_0 = r_0 + γ [(1 − λ) v_1 + λ G_1].

    Args:
        rewards: (T, N).
        next_values: (T, N) max_a Q of what follows action t: 0 after termination, of the true last observation after
            truncation.
        carried: (T, N) bool, whether G_{t+1} continues what t began; the last row is not read.
        gamma: discount.
        q_lambda: λ.

    Returns:
        (T, N).
    """
    targets = torch.empty_like(rewards)
    tail = next_values[-1]
    for t in range(len(rewards) - 1, -1, -1):
        targets[t] = rewards[t] + gamma * tail
        if t:
            share = q_lambda * carried[t - 1].to(rewards.dtype)
            tail = (1 - share) * next_values[t - 1] + share * targets[t]
    return targets


class RectifiedAdam(Adam):
    """RAdam (Liu et al. 2020, arXiv 1908.03265) on torch's fused Adam: a tenth of the time of `torch.optim.RAdam`.

    Adam's step is multiplied by r_t (their equation of the rectification). Where they take plain momentum, in the first
    five steps, the weights stay.
    """

    def rectification(self, step: int) -> float:
        """r_t of the step t = `step`, counted from 1; 0 where the variance is not known yet."""
        beta = self.defaults["betas"][1]
        most = 2 / (1 - beta) - 1
        power = beta**step
        length = most - 2 * step * power / (1 - power)
        if length <= 5:
            return 0.0
        return math.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))

    def step(self, closure: Any = None) -> Any:
        """One step of all groups, each at its own learning rate."""
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            known = next((self.state[p]["step"] for p in group["params"] if "step" in self.state[p]), 0)
            group["lr"] *= self.rectification(int(known) + 1)
        loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return loss


class PQN(ActionValueLearner):
    """Trains a `QAgent`; arguments as for `ActionValueLearner`.

    Where goals change, the λ-return is cut: what follows pursues other goals.
    """

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: QAgent,
        streams: Sequence[RewardStream],
        config: PQNConfig,
        *,
        total_steps: int,
        **how: Any,
    ) -> None:
        falls_in = max(1, int(config.epsilon_share * total_steps))
        super().__init__(envs, agent, streams, config, epsilon_steps=falls_in, total_steps=total_steps, **how)
        self.config = config
        self.optimizer = RectifiedAdam(self.parameters, lr=config.learning_rate, fused=True)

    def learn(self) -> dict[str, float]:
        c, r = self.config, self.collector.rollout
        targets = self.targets().flatten()
        actions = torch.from_numpy(r.actions).flatten().to(self.device)
        views = self.collector.views[: self.collector.num_steps].flat()
        with torch.no_grad():
            inputs = self.agent.inputs(views)
        remaining = 1.0 - min(1.0, self.step / self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = c.learning_rate * max(remaining, 1e-3)
        losses, norms = [], []
        for _ in range(c.update_epochs):
            order = torch.randperm(len(targets), generator=self.shuffle, device=self.device)
            for mb in order.split(-(-len(targets) // c.num_minibatches)):
                rows = {name: tensor.index_select(0, mb) for name, tensor in inputs.items()}
                chosen = self.agent.q_values(rows).gather(1, actions[mb, None]).squeeze(1)
                loss = 0.5 * (chosen - targets[mb]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                for stream in self.learners.values():
                    stream.loss(mb).backward()
                norms.append(torch.stack([nn.utils.clip_grad_norm_(one, c.max_grad_norm) for one in self.owners])[0])
                self.optimizer.step()
                losses.append(loss.detach())
        found = torch.stack([torch.stack(losses).mean(), torch.stack(norms).mean()])
        self.check_finite(*found.tolist())
        return {
            "pqn/loss": float(found[0]),
            "pqn/grad_norm": float(found[1]),
            "pqn/epsilon": self.agent.epsilon,
            "pqn/value": float(self.collector.values.mean()),
            "pqn/target": float(targets.mean()),
        }

    @torch.no_grad()
    def targets(self) -> Tensor:
        """(T, N) the Q(λ) targets of the stored rollout."""
        c, T = self.collector, self.collector.num_steps
        next_values, ended = self.next_values(self.bootstrap_truncated)
        actions = torch.from_numpy(c.rollout.actions).to(self.device)
        said = c.logits.flatten(0, 1)
        if self.agent.guide is not None:  # whose action may be likelier than the best one
            said = self.agent.q_values(self.agent.inputs(c.views[:T].flat()))
        greedy = said.argmax(-1).view_as(actions) == actions  # (T, N)
        carried = ~ended[:, :, 0]
        carried[:-1] &= greedy[1:]
        goal = c.views.goal
        if goal is not None:
            same = (goal[1:T] == goal[: T - 1]).all(axis=tuple(range(2, goal.ndim)))
            carried[:-1] &= torch.from_numpy(same).to(self.device)
        reward = (self.rewards * self.coef).sum(-1)
        return q_lambda_targets(reward, next_values[:, :, 0], carried, self.config.gamma, self.config.q_lambda)

    def warnings(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Values that run away."""
        value, target = abs(metrics["pqn/value"]), abs(metrics["pqn/target"])
        if value > 100 * max(1.0, target):
            return {"value": f"action values have run away ({value:.3g}); a smaller --learning-rate holds them"}
        return {}
