"""ppo: proximal policy optimisation on the env's own reward. What it is made of serves the methods that build on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from bkrl.core.config import Mission, Network, PPOConfig, View
from bkrl.core.flags import Flag
from bkrl.methods.registry import Method, Trainee, register_method
from bkrl.methods.settings import PublishedDefects, StartingWeights

if TYPE_CHECKING:
    from bkrl.agents.network import NetworkAgent
    from bkrl.agents.protocol import TrainableAgent
    from bkrl.envs import World
    from bkrl.envs.vector import WorldVectorEnv
    from bkrl.learn.hardware import Hardware
    from bkrl.learn.ppo import PPO
    from bkrl.rewards.streams import RewardStream


@dataclass(frozen=True)
class PPOSettings(StartingWeights, PublishedDefects):
    """Settings of ppo, and of what extends it."""

    reward_scale: Annotated[float, Flag("the env's reward is multiplied by this (published: 10)", least=0)] = 1.0
    network: Network = "compact"
    mission: Mission = "auto"
    see_memory: Annotated[
        bool,
        Flag(
            "the policy and its critic read what happened in the episode so far (achievements, doors opened, cells "
            "seen; compact)"
        ),
    ] = False
    view: View = None
    ppo: PPOConfig = field(default_factory=PPOConfig)

    @property
    def rollout_steps(self) -> int:
        """Env steps of an iteration."""
        return self.ppo.num_envs * self.ppo.num_steps


def ppo_of(
    settings: PPOSettings,
    streams: Callable[[World, Hardware], Sequence[RewardStream]],
    advised: Callable[[NetworkAgent], NetworkAgent] = lambda agent: agent,
    defects: frozenset[str] = frozenset(),
) -> PPO:
    """PPO with the network of the settings, untrained.

    Args:
        settings: of the run.
        streams: what it is paid in this env, computed there.
        advised: puts advice on the agent's logits.
        defects: of the published code, to train with.

    Raises:
        UsageError: settings that cannot work.
        InputError: the weights to start from are missing, damaged or another network's.
    """
    from bkrl.agents.build import new_agent, observation_options, take_weights
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import make_vec, world
    from bkrl.learn.hardware import choose

    facts = world(settings.env)
    hardware = choose(settings.hardware, settings.network)
    options, view = observation_options(facts, settings.network, settings.view)
    envs = make_vec(settings.env, settings.ppo.num_envs, backend=settings.backend, **options)
    paid = streams(facts, hardware)
    missions, seed = reads_missions(settings), derive_seed(settings.seed, "weights")
    sees = getattr(settings, "see_memory", False)
    agent = new_agent(settings.network, envs, view, len(paid), seed, missions, sees)
    if settings.init_from is not None:
        take_weights(agent.module, settings.init_from)
    return learner_of(settings, envs, agent, paid, hardware, advised, defects)


def reads_missions(settings: Any) -> bool:
    """Whether the network is to read missions; `settings` have `mission`, `network` and `env`."""
    from bkrl.envs import missions_vary

    auto = settings.mission == "auto" and settings.network != "paper" and missions_vary(settings.env)
    return bool(auto or settings.mission == "on")


def learner_of(
    settings: Any,
    envs: WorldVectorEnv,
    agent: TrainableAgent,
    paid: Sequence[RewardStream],
    hardware: Hardware,
    advised: Callable[[Any], TrainableAgent] = lambda agent: agent,
    defects: frozenset[str] = frozenset(),
    **more: Any,
) -> PPO:
    """PPO with an agent that has not seen its envs yet; `settings` have `ppo`, `steps`, `seed`; `more` goes to PPO."""
    from bkrl.agents.build import teach
    from bkrl.agents.network import NetworkAgent
    from bkrl.learn.ppo import PPO

    if isinstance(agent, NetworkAgent):
        teach(agent, envs)
    return PPO(
        envs,
        advised(agent),
        paid,
        settings.ppo,
        total_steps=settings.steps,
        bootstrap_truncated="b10" not in defects,
        broadcast_values="g7" in defects,
        seed=settings.seed,
        hardware=hardware,
        **more,
    )


def env_reward(settings: Any) -> RewardStream:
    """The env's own reward; `settings` have `ppo` and `reward_scale`."""
    from bkrl.rewards.streams import EnvReward

    return EnvReward(gamma=settings.ppo.gamma, scale=settings.reward_scale)


def facts_of(form: str, defects: frozenset[str], learner: PPO) -> dict[str, Any]:
    """What the manifest says of a run: its form of shaping and what that guarantees, defects and the view."""
    from bkrl.rewards.shaping import FORMS
    from bkrl.rewards.upstream import guarantee, named

    agent: Any = learner.agent
    facts = {
        "form": form,
        "guarantee": FORMS[form].guarantee,
        "view": getattr(agent, "view", "text"),
        "mission": "mission" in agent.wants,
        **({"memory": True} if "memory" in agent.wants else {}),
    }
    return facts | ({"compat": named(defects), "guarantee": guarantee(defects)} if defects else {})


def build(settings: PPOSettings) -> Trainee:
    """PPO from the env's reward alone."""
    defects = settings.defects
    learner = ppo_of(settings, lambda world, hardware: [env_reward(settings)], defects=defects)
    return Trainee(learner, facts_of("none", defects, learner), iteration_steps=settings.rollout_steps)


register_method(Method("ppo", PPOSettings, build, "plain PPO on the env's reward", colour=0))
