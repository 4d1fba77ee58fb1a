"""What learners of action values have in common: a `QAgent`, one reward, and a loss that must stay finite."""

import math
from collections.abc import Sequence

import torch

from bkrl.agents.protocol import Goals
from bkrl.agents.q import QAgent
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.on_rollouts import Diverged, RolloutLearner
from bkrl.rewards.streams import RewardStream


class ActionValueLearner(RolloutLearner):
    """Trains a `QAgent`.

    Args:
        envs: N envs with SAME_STEP autoreset.
        agent: values actions; one value.
        streams: what it is paid in; their weighted sum is one reward.
        num_steps: T.
        epsilon: (first, last, steps): ε falls from the first to the last in so many env steps.
        total_steps: env steps to train for.
        seed: of envs, actions and what is drawn to learn from.
        hardware: where the agent computes.
        goals: sets goals, for an agent that sees them.
        bootstrap_truncated: whether what a time limit cuts off is worth what its last observation is; without, nothing
            (as published).
    """

    agent: QAgent

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: QAgent,
        streams: Sequence[RewardStream],
        *,
        num_steps: int,
        epsilon: tuple[float, float, int],
        total_steps: int,
        seed: int = 0,
        hardware: Hardware = CPU,
        goals: Goals | None = None,
        bootstrap_truncated: bool = True,
    ) -> None:
        self.bootstrap_truncated = bootstrap_truncated
        agent.falls = epsilon
        super().__init__(
            envs,
            agent,
            streams,
            num_steps=num_steps,
            num_values=1,
            total_steps=total_steps,
            seed=seed,
            hardware=hardware,
            goals=goals,
        )
        # There is one value for all streams, so returns stop at true ends for all of them
        self.episodic = torch.ones(1, dtype=torch.bool, device=self.device)

    def check_finite(self, *figures: float) -> None:
        """Diverged where losses or gradients are not finite."""
        if not all(map(math.isfinite, figures)):
            raise Diverged(
                f"Training diverged at step {self.step:,}: losses are not finite. The same command would come to the "
                "same end: begin again with --fresh and a smaller --learning-rate."
            )
