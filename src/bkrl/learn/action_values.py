"""What learners of action values have in common: a `QAgent`, one reward, and a loss that must stay finite."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from bkrl.agents.q import QAgent
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.on_rollouts import Diverged, RolloutLearner
from bkrl.learn.settings import DQNConfig, PQNConfig
from bkrl.rewards.streams import RewardStream


class ActionValueLearner(RolloutLearner):
    """Trains a `QAgent`.

    Args:
        envs: N envs with SAME_STEP autoreset.
        agent: values actions; one value.
        streams: what it is paid in; their weighted sum is one reward.
        config: hyper-parameters.
        epsilon_steps: env steps in which ε falls.
        bootstrap_truncated: whether what a time limit cuts off is worth what its last observation is; without, nothing
            (as published).
        how: total_steps, seed, hardware and goals, as for `RolloutLearner`.
    """

    agent: QAgent

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: QAgent,
        streams: Sequence[RewardStream],
        config: PQNConfig | DQNConfig,
        *,
        epsilon_steps: int,
        bootstrap_truncated: bool = True,
        **how: Any,
    ) -> None:
        self.bootstrap_truncated = bootstrap_truncated
        first = 1.0 if config.epsilon_first is None else config.epsilon_first
        agent.falls = (first, config.epsilon_last, epsilon_steps)
        super().__init__(envs, agent, streams, num_steps=config.num_steps, num_values=1, **how)
        # There is one value for all streams, so returns stop at true ends for all of them
        self.episodic = torch.ones(1, dtype=torch.bool, device=self.device)

    def check_finite(self, *figures: float) -> None:
        """Diverged where losses or gradients are not finite."""
        if not all(map(math.isfinite, figures)):
            raise Diverged(
                f"Training diverged at step {self.step:,}: losses are not finite. The same command would come to the "
                "same end: begin again with --fresh and a smaller --learning-rate."
            )
