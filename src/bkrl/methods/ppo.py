"""ppo: proximal policy optimisation on the env's own reward. What it is made of serves the methods that build on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from bkrl.core.config import CONVOLUTIONAL, PAID, Mission, Network, PPOConfig, View
from bkrl.core.flags import Flag
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import PublishedDefects, StartingWeights, defect_facts, form_facts, learning

if TYPE_CHECKING:
    from bkrl.agents.network import NetworkAgent
    from bkrl.agents.protocol import TrainableAgent
    from bkrl.envs.vector import BaseVectorEnv
    from bkrl.learn.hardware import Hardware
    from bkrl.learn.ppo import PPO
    from bkrl.rewards.streams import RewardStream


@dataclass(frozen=True)
class PPOSettings(StartingWeights, PublishedDefects):
    """Settings of ppo, and of what extends it."""

    reward_scale: Annotated[
        float, Flag("the env's reward is multiplied by this (published: 10)", least=0, only=(PAID,))
    ] = 1.0
    network: Network = "compact"
    mission: Mission = "auto"
    see_memory: Annotated[
        bool,
        Flag(
            "give policy and critic the memory of the episode (achievements, opened doors, visited cells); --network "
            "compact only"
        ),
    ] = False
    view: View = None
    ppo: PPOConfig = field(default_factory=PPOConfig)

    @property
    def rollout_steps(self) -> int:
        """Env steps of an iteration; methods of plugins ask for them here."""
        return self.ppo.rollout_steps


class Setup(NamedTuple):
    """Where a policy learns.

    Attributes:
        envs: stepped side by side.
        view: what the policy sees of them: `symbolic`, `image` or `text`.
        hardware: of the policy and of what it is paid by.
    """

    envs: BaseVectorEnv
    view: str
    hardware: Hardware


def set_up(settings: PPOSettings) -> Setup:
    """The envs and the hardware; UsageError where the network cannot read the env."""
    from bkrl.agents.build import observation_options
    from bkrl.envs import env_spec, make_vec
    from bkrl.learn.hardware import choose

    hardware = choose(settings.hardware, settings.network)
    options, view = observation_options(env_spec(settings.env), settings.network, settings.view)
    return Setup(make_vec(settings.env, settings.ppo.num_envs, backend=settings.backend, **options), view, hardware)


def policy_of(settings: PPOSettings, setup: Setup, num_values: int) -> NetworkAgent:
    """An agent with the network of the settings and `num_values` reward streams, which knows the words of its missions.

    Raises:
        UsageError: the network cannot read missions, or nothing is remembered of episodes.
        InputError: the weights to start from are missing, damaged or another network's.
    """
    from bkrl.agents.build import new_agent, take_weights, teach
    from bkrl.core.seeds import derive_seed

    missions, seed = reads_missions(settings), derive_seed(settings.seed, "weights")
    agent = new_agent(settings.network, setup.envs, setup.view, num_values, seed, missions, settings.see_memory)
    if settings.init_from is not None:
        take_weights(agent.module, settings.init_from)
    teach(agent, setup.envs)
    return agent


def reads_missions(settings: Any) -> bool:
    """Whether the network is to read missions; `settings` have `mission`, `network` and `env`."""
    from bkrl.envs import mission_is_hidden

    auto = settings.mission == "auto" and settings.network not in CONVOLUTIONAL and mission_is_hidden(settings.env)
    return bool(auto or settings.mission == "on")


def learner_of(settings: Any, setup: Setup, agent: TrainableAgent, streams: Sequence[RewardStream], **more: Any) -> PPO:
    """PPO with this agent, untrained; `settings` have `ppo`, `steps`, `seed` and `defects`; `more` goes to PPO."""
    from bkrl.learn.ppo import PPO

    how = learning(settings, setup.hardware) | {"broadcast_values": "g7" in settings.defects} | more
    return PPO(setup.envs, agent, streams, settings.ppo, **how)


def env_reward(settings: Any, coef: float = 1.0) -> RewardStream:
    """The env's own reward, weighing `coef`; `settings` have `ppo` and `reward_scale`."""
    from bkrl.rewards.streams import EnvReward

    return EnvReward(gamma=settings.ppo.gamma, coef=coef, scale=settings.reward_scale)


def facts_of(form: str, defects: frozenset[str], learner: PPO) -> dict[str, Any]:
    """What the manifest says of a run: its form of shaping and what that guarantees, defects and the view."""
    from bkrl.agents.advised import AdvisedAgent

    agent: Any = learner.agent
    if isinstance(agent, AdvisedAgent):  # which may read more than the policy
        agent = agent.base
    sees = {"view": agent.view, "mission": "mission" in agent.wants}
    sees |= {"memory": True} if "memory" in agent.wants else {}
    return form_facts(form) | sees | defect_facts(defects)


def build(settings: PPOSettings) -> Training:
    """PPO from the env's reward alone."""
    setup = set_up(settings)
    learner = learner_of(settings, setup, policy_of(settings, setup, 1), [env_reward(settings)])
    return Training(learner, facts_of("none", settings.defects, learner), iteration_steps=settings.ppo.rollout_steps)


register_method(Method("ppo", PPOSettings, build, "plain PPO on the env's reward", colour=0))
