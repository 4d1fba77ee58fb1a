"""DQN from a replay memory: double, with n-step returns and a target network, as ELLM trained it.

Sources: Mnih et al. 2015; van Hasselt et al. 2016 (double); Du et al. 2023 (arXiv 2302.06692) for the defaults.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.agents.networks.adam import Adam
from bkrl.agents.q import QAgent
from bkrl.agents.weights import load_weights
from bkrl.core.errors import UsageError
from bkrl.core.prefixes import under
from bkrl.core.seeds import generator
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.action_values import ActionValueLearner
from bkrl.learn.protocol import Saved
from bkrl.learn.replay import Batch, Replay, drawable
from bkrl.learn.settings import DQNConfig
from bkrl.rewards.streams import RewardStream

STREAM_RATE = 1e-4
"""Learning rate of the models that reward streams have (published, for ELLM's baselines)."""


def double_targets(batch: Batch, best: Tensor, target_values: Tensor) -> Tensor:
    """(B,) n-step returns plus the discounted target value of the action that the trained network prefers.

    Args:
        batch: the steps.
        best: (B,) int64, argmax_a Q(after, a) of the trained network.
        target_values: (B, A) of the target network at `after`.
    """
    values = target_values.gather(1, best[:, None]).squeeze(1)
    returns, discounts = (torch.from_numpy(one).to(values.device) for one in (batch.returns, batch.discounts))
    return returns + discounts * values


class DQN(ActionValueLearner):
    """Trains a `QAgent`; arguments as for `ActionValueLearner`.

    shared_readers: only the heads have a copy that lags behind, all before them is shared (published).
    """

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: QAgent,
        streams: Sequence[RewardStream],
        config: DQNConfig,
        *,
        shared_readers: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(envs, agent, streams, config, epsilon_steps=config.epsilon_steps, **how)
        self.config = config
        groups: list[dict[str, Any]] = [{"params": self.owners[0]}]
        groups += [{"params": owner, "lr": STREAM_RATE} for owner in self.owners[1:]]
        self.optimizer = Adam(groups, lr=config.learning_rate, fused=True)
        self.target = copy.deepcopy(agent.module).requires_grad_(False)
        for reader in agent.module.readers if shared_readers else ():
            setattr(self.target, reader, agent.module.get_submodule(reader))
        self.replay = Replay(config.replay_size, config.num_envs, *agent.remembered)
        each = config.num_envs * config.num_steps  # the last iteration is played to its end
        last = -(-self.total_steps // each) * each // config.update_every * config.update_every
        rows = min(-(-last // each) * config.num_steps, self.replay.rows)  # that the last update draws from
        if last <= config.learning_starts or drawable(rows, config.num_envs, config.n_step) < config.batch_size:
            why = "--steps or --replay-size is too small for --learning-starts, --batch-size and --update-every"
            raise UsageError(f"Nothing would ever be learnt: {why}; give more, or lower those.")
        self.updates = 0
        self.earned = 0.0  # the sum of all rewards, until it reaches 1

    def learn(self) -> dict[str, float]:
        c, before = self.config, self.step - self.rewards[:, :, 0].numel()
        self._remember()
        self._train_streams()
        wanted = self.step // c.update_every - max(before, c.learning_starts) // c.update_every
        if self.earned < 1:  # damage may cost some of it later, and learning goes on
            self.earned += float((self.rewards * self.coef).sum())
        waits = c.after_reward and self.earned < 1
        if waits:
            self.agent.since = self.step
        ready = not waits and self.replay.ready(c.n_step) >= c.batch_size
        losses = [self._update() for _ in range(wanted if ready else 0)]
        if self.step // c.target_every > before // c.target_every:
            self.target.load_state_dict(self.agent.module.state_dict())
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        self.check_finite(loss)
        return {
            "dqn/loss": loss,
            "dqn/updates": float(self.updates),
            "dqn/epsilon": self.agent.epsilon,
            "dqn/value": float(self.collector.values.mean()),
        }

    def _remember(self) -> None:
        r, T = self.collector.rollout, self.collector.num_steps
        seen = self.agent.rows(self.collector.views)  # (T + 1, N, W)
        after = seen[1:].copy()
        if len(r.final_index):
            after.reshape(-1, after.shape[-1])[r.final_index] = self.agent.rows(self.collector.final_views)
        rewards = (self.rewards * self.coef).sum(-1).cpu().numpy()
        if not self.config.raw_rewards:
            rewards = rewards.clip(-1, 1)
        actions = r.actions
        terminated = r.ends(cut=not self.bootstrap_truncated)
        for t in range(T):
            self.replay.add(seen[t], actions[t], rewards[t], after[t], terminated[t], r.truncated[t])

    def _train_streams(self) -> None:
        """The models of streams read each step once, when it is new: what they paid for it stays. The predictor
        of RND learns from a share of them (`update_proportion`).
        """
        steps = self.rewards[:, :, 0].numel()
        for stream in self.learners.values():
            self.optimizer.zero_grad()  # the agent's weights have no gradients then, and stay
            stream.loss(torch.randperm(steps, generator=self.shuffle, device=self.device)).backward()
            self.optimizer.step()

    def _update(self) -> Tensor:
        c = self.config
        rng = generator(self.seed, "replay", self.updates)  # named after the update, so it need not be saved
        batch = self.replay.sample(c.batch_size, rng, gamma=c.gamma, num_steps=c.n_step)
        with torch.no_grad():
            after = self.agent.of_rows(batch.after)
            targets = double_targets(batch, self.agent.q_values(after).argmax(1), self.target(**after))
        actions = torch.from_numpy(batch.actions)[:, None].to(self.device)
        chosen = self.agent.q_values(self.agent.of_rows(batch.seen)).gather(1, actions)
        loss = nn.functional.smooth_l1_loss(chosen.squeeze(1), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        return loss.detach()

    def warnings(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Values that run away."""
        bound = 1 / (1 - self.config.gamma) if self.config.gamma < 1 and not self.config.raw_rewards else np.inf
        if abs(metrics["dqn/value"]) > 2 * bound:
            return {
                "value": f"action values have run away ({metrics['dqn/value']:.3g}); a smaller --learning-rate helps"
            }
        return {}

    def state(self) -> Saved:
        """See `Learner.state`; the memory included."""
        saved = super().state()
        tensors = saved.tensors | {f"target.{name}": one for name, one in self.target.state_dict().items()}
        tensors |= {f"replay.{name}": one for name, one in self.replay.state().items()}
        counters = saved.counters | {"updates": self.updates, "earned": self.earned, "since": self.agent.since}
        return Saved(tensors, counters, saved.exact)

    def restore(self, saved: Saved) -> None:
        self.agent.since = int(saved.counters["since"])
        super().restore(saved)
        load_weights(self.target, saved.tensors, "target.")
        self.replay.restore(under(saved.tensors, "replay."))
        if not saved.exact:
            self.replay.cut()
        self.updates, self.earned = int(saved.counters["updates"]), float(saved.counters["earned"])
