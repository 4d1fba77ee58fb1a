"""babyai-ppo: the agent published with BabyAI, by its own hyper-parameters.

Sources: Hui et al. (2020), BabyAI 1.1, the original architecture; Carta et al. (2023), where it is Symbolic-PPO.
"""

from dataclasses import dataclass, field
from typing import Annotated

from bkrl.core.config import PPOConfig
from bkrl.core.flags import Flag
from bkrl.methods.ppo import Setup, env_reward, facts_of, learner_of
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import StartingWeights

PUBLISHED = PPOConfig(
    num_steps=40, learning_rate=1e-4, gae_lambda=0.99, vf_coef=1.0, norm_adv=False, clip_vloss=True, recurrence=20
)
"""The published hyper-parameters. Their value loss has no factor ½, so its weight here is twice theirs."""


@dataclass(frozen=True)
class BabyAIPPOSettings(StartingWeights):
    """Settings of babyai-ppo."""

    reward_scale: Annotated[float, Flag("the env's reward is multiplied by this", least=0)] = 20.0
    ppo: PPOConfig = field(default_factory=lambda: PUBLISHED)


def build(settings: BabyAIPPOSettings) -> Training:
    """The agent published with BabyAI, trained by PPO."""
    from bkrl.agents.build import new_agent, take_weights, teach
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import make_vec
    from bkrl.learn.hardware import choose

    envs = make_vec(settings.env, settings.ppo.num_envs, backend=settings.backend)
    setup = Setup(envs, "symbolic", choose(settings.hardware, "paper"))
    agent = new_agent("film", envs, "symbolic", 1, derive_seed(settings.seed, "weights"))
    if settings.init_from is not None:
        take_weights(agent.module, settings.init_from)
    teach(agent, envs)
    learner = learner_of(settings, setup, agent, [env_reward(settings)])
    return Training(learner, facts_of("none", frozenset(), learner), iteration_steps=settings.ppo.rollout_steps)


register_method(Method("babyai-ppo", BabyAIPPOSettings, build, "PPO with the agent published with BabyAI"))
