"""babyai-ppo: the agent published with BabyAI, by its own hyper-parameters.

Sources: Hui et al. (2020), BabyAI 1.1, the original architecture; Carta et al. (2023), where it is Symbolic-PPO.
"""

from dataclasses import dataclass, field
from typing import Annotated

from bkrl.core.config import NumMinibatches, NumSteps, PPOConfig
from bkrl.core.flags import Flag
from bkrl.methods.ppo import Setup, env_reward, facts_of, learner_of
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import StartingWeights


@dataclass(frozen=True)
class PublishedPPO(PPOConfig):
    """The published hyper-parameters. Their value loss has no factor ½, so its weight here is twice theirs."""

    num_envs: Annotated[int, Flag("envs stepped side by side", least=1)] = 64
    num_steps: NumSteps = 40
    learning_rate: Annotated[float, Flag("Adam's step size", least=0)] = 1e-4
    gae_lambda: Annotated[float, Flag("λ of generalised advantage estimation", least=0, most=1)] = 0.99
    num_minibatches: NumMinibatches = 2
    vf_coef: Annotated[float, Flag("weight of the value loss", least=0)] = 1.0
    norm_adv: Annotated[bool, Flag("bring the advantages of a rollout to mean 0 and spread 1")] = False
    clip_vloss: Annotated[bool, Flag("clip the value loss by --clip-coef, as the policy's is")] = True
    recurrence: Annotated[
        int, Flag("steps through which gradients reach back in an agent with a memory; 0: a whole rollout", least=0)
    ] = 20


@dataclass(frozen=True)
class BabyAIPPOSettings(StartingWeights):
    """Settings of babyai-ppo."""

    reward_scale: Annotated[float, Flag("the env's reward is multiplied by this", least=0)] = 20.0
    ppo: PublishedPPO = field(default_factory=PublishedPPO)


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
    facts = facts_of("none", frozenset(), learner)
    return Training(learner, facts, iteration_steps=settings.ppo.num_envs * settings.ppo.num_steps)


register_method(Method("babyai-ppo", BabyAIPPOSettings, build, "PPO with the agent published with BabyAI"))
