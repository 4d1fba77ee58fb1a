"""pqn and dqn: learners of action values on the env's reward, on novelty, or on both.

Without pretraining they are the paper's `scratch`; with `--env-coef 0 --curiosity rnd` its baselines without goals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from bkrl.core.errors import UsageError
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.learn.settings import DQNConfig, PQNConfig
from bkrl.methods.curiosity import ALPHA, FIRST_VISIT, curious
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import PublishedDefects, StartingWeights, defect_facts, form_facts, learning

if TYPE_CHECKING:
    from torch import nn

    from bkrl.agents.q import QAgent
    from bkrl.envs.family import EnvSpec

_Names: TypeAlias = tuple[str, ...]
_Config = TypeVar("_Config", PQNConfig, DQNConfig)
FINETUNING_EPSILON = 0.1
"""With which ε falls where the first policy has learnt something; at 1 its behaviour would be undone first."""
_GUIDED = AppliesWhen("--guide", lambda c: c.guide is not None)
_CURIOUS = AppliesWhen("--curiosity", lambda c: c.curiosity != "none")
_NOVELD = AppliesWhen("--curiosity noveld", lambda c: c.curiosity == "noveld")


@dataclass(frozen=True)
class TransferSettings(StartingWeights, PublishedDefects):
    """Settings of those that may begin with what another run has learnt."""

    trains: Annotated[
        Literal["all", "heads", "last"],
        Flag("what is trained: all; heads, all but the layer that reads observations; or the last layer"),
    ] = "all"

    @property
    def _concerned(self) -> str:
        return "values"


@dataclass(frozen=True)
class GuidedSettings(TransferSettings):
    """Settings of those that value actions."""

    guide: Annotated[
        Path | None,
        Flag("a finished value-based run; a share of exploratory actions copies its greedy action", reads=True),
    ] = None
    guide_share: Annotated[
        float, Flag("share of the random actions that --guide chooses", least=0, most=1, only=(_GUIDED,))
    ] = 0.5


@dataclass(frozen=True)
class ValueSettings(GuidedSettings):
    """Settings of pqn and dqn."""

    env_coef: Annotated[float, Flag("weight of the env's own reward; 0 leaves it out", least=0)] = 1.0
    curiosity: Annotated[
        Literal["none", "rnd", "noveld", "deir", "icm", "apt", "apt-learnt"],
        Flag("pay for novelty: rnd, noveld, deir, icm, apt in fixed random features or in learnt ones; or none"),
    ] = "none"
    int_coef: Annotated[float, Flag("weight of the novelty reward", least=0, only=(_CURIOUS,))] = 1.0
    noveld_alpha: Annotated[float, Flag(ALPHA, least=0, only=(_NOVELD,))] = 0.5
    noveld_first_visit: Annotated[bool, Flag(FIRST_VISIT, only=(_NOVELD,))] = True


@dataclass(frozen=True)
class PQNSettings(ValueSettings):
    """Settings of pqn."""

    pqn: PQNConfig = field(default_factory=PQNConfig)


@dataclass(frozen=True)
class DQNSettings(ValueSettings):
    """Settings of dqn."""

    dqn: DQNConfig = field(default_factory=DQNConfig)


def begin(settings: TransferSettings, network: nn.Module, first: _Names, last: _Names = ("head.",)) -> None:
    """Give a network its first weights, and freeze what is not to be trained.

    `first` and `last` are the beginnings of the names of the weights that read observations, and of the last layer's.
    """
    from bkrl.agents.build import take_weights

    if settings.init_from is not None:
        take_weights(network, settings.init_from)
    trains = "all" if "e7" in settings.defects else settings.trains
    for name, parameter in network.named_parameters():
        trained = trains == "all" or (trains == "heads" and not name.startswith(first))
        parameter.requires_grad_(trained or name.startswith(last))


def with_epsilon(settings: TransferSettings, config: _Config) -> _Config:
    """The hyper-parameters with the ε that a run begins with, if none is named: 1, or less from `init_from`."""
    if config.epsilon_first is not None:
        return config
    return replace(config, epsilon_first=1.0 if settings.init_from is None else FINETUNING_EPSILON)


def value_agent(
    settings: GuidedSettings, facts: EnvSpec, config: PQNConfig | DQNConfig, num_deeds: int = 0, published: bool = False
) -> QAgent:
    """An agent that values actions, with its first weights and its guide.

    It sees which of `num_deeds` deeds are its goals, if there are any; `published`: as the published agent does.

    Raises:
        UsageError: the guide sees or does other things.
        InputError: weights that are not there, or are another network's.
    """
    from bkrl.agents import load_agent
    from bkrl.agents.q import QAgent
    from bkrl.runs.record import Run

    agent = (_published if published else _symbolic)(settings, facts, config, num_deeds)
    begin(settings, agent.module, agent.module.first, agent.module.last)
    if settings.guide is not None:
        guide = load_agent(Run.open(settings.guide, "train-rs").path)
        alike = type(guide) is type(agent) and guide.action_names == agent.action_names
        if not isinstance(guide, QAgent) or not alike or guide.module.sees != agent.module.sees:
            raise UsageError(
                f"--guide {settings.guide}: its policy sees or does other things than this one; train it by the same "
                "--alg and settings."
            )
        agent.guide, agent.guide_share = guide, settings.guide_share
    return agent


def _symbolic(settings: GuidedSettings, facts: EnvSpec, config: PQNConfig | DQNConfig, num_deeds: int) -> QAgent:
    from bkrl.agents.goal import with_goals
    from bkrl.agents.q import QAgent, QNetwork
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import family

    num_actions, normal = len(facts.action_names), isinstance(config, PQNConfig)
    symbols = with_goals(family(facts.family).symbols(facts.obs_shape), num_deeds)
    network = QNetwork(symbols, num_actions, config.hidden, normal, not normal)
    network.initialise(derive_seed(settings.seed, "weights"), 1.0 if "e1" in settings.defects else 0.01)
    agent = QAgent(network, facts.env_id, facts.family, facts.action_names)
    agent.sees_goals = num_deeds > 0
    return agent


def _published(settings: Any, facts: EnvSpec, config: Any, num_deeds: int) -> QAgent:
    from bkrl.agents.published_q import PublishedAgent, PublishedNetwork
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import family, situations
    from bkrl.text.encoders import fit_encoder

    if not num_deeds or not family(facts.family).images:
        raise UsageError(f"--sees published: {facts.env_id} has no pictures or no deeds; leave it out.")
    name, defects = settings.text_encoder, settings.defects
    encoder = fit_encoder(name, situations(facts.env_id).deeds)
    network = PublishedNetwork(len(facts.action_names), encoder.size)
    network.initialise(derive_seed(settings.seed, "weights"), 1.0 if "e1" in defects else 0.01)
    who = (facts.env_id, facts.family, facts.action_names, "image")
    return PublishedAgent(network, *who, encoder=encoder, run_on="e6" in defects)


def build(settings: ValueSettings) -> Training:
    """Q-learning from the env's reward, by PQN or DQN."""
    from bkrl.envs import env_spec, make_vec
    from bkrl.learn.dqn import DQN
    from bkrl.learn.hardware import choose
    from bkrl.learn.pqn import PQN
    from bkrl.rewards.streams import EnvReward, RewardStream

    own: Any = settings.pqn if isinstance(settings, PQNSettings) else settings.dqn  # type: ignore[attr-defined]
    config = with_epsilon(settings, own)
    if settings.env_coef == 0 and settings.curiosity == "none":
        raise UsageError("--env-coef 0 leaves nothing to be paid for; pass --curiosity too, such as --curiosity rnd.")
    facts, hardware = env_spec(settings.env), choose(settings.hardware, "compact")
    streams: list[RewardStream] = []
    if settings.env_coef:
        streams.append(EnvReward(gamma=config.gamma, coef=settings.env_coef))
    if settings.curiosity != "none":
        streams.append(curious(settings.curiosity, settings, facts, config.num_envs, hardware, config.gamma))
    agent = value_agent(settings, facts, config)
    envs = make_vec(settings.env, config.num_envs, backend=settings.backend)
    learner: Any = PQN if isinstance(config, PQNConfig) else DQN
    form = "none" if settings.curiosity == "none" else "novelty"
    return Training(
        learner(envs, agent, streams, config, **learning(settings, hardware)),
        form_facts(form) | {"view": "symbolic"} | defect_facts(settings.defects),
        iteration_steps=config.num_envs * config.num_steps,
    )


for _name, _settings, _what in (
    ("pqn", PQNSettings, "Q(λ) on rollouts, without a replay memory"),
    ("dqn", DQNSettings, "double, dueling, from a replay memory"),
):
    _help = f"action values on the env's reward, novelty or both: {_what}"
    register_method(Method(_name, _settings, build, _help, baseline=_name, colour=0))
