"""pqn and dqn: learners of action values on the env's reward, on novelty, or on both.

Without pretraining they are the paper's `scratch`; with `--env-coef 0 --curiosity rnd` its baselines without goals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bkrl.core.config import DQNConfig, PQNConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag, Only
from bkrl.methods.curiosity import Curiosity, curious
from bkrl.methods.registry import Method, Trainee, TrainRsConfig, register_method

if TYPE_CHECKING:
    from torch import nn

    from bkrl.agents.q import QAgent
    from bkrl.envs.family import World

_GUIDED = Only("--guide", lambda c: c.guide is not None)
_CURIOUS = Only("--curiosity", lambda c: c.curiosity != "none")


@dataclass(frozen=True)
class TransferSettings(TrainRsConfig):
    """Settings of those that may begin with what another run has learnt."""

    init_from: Annotated[
        Path | None, Flag("start from these weights: a train-rs run, or a .safetensors file of a policy", reads=True)
    ] = None
    trains: Annotated[
        Literal["all", "heads", "last"],
        Flag("what is trained: all; heads, all but the layer that reads observations; or the last layer"),
    ] = "all"


@dataclass(frozen=True)
class GuidedSettings(TransferSettings):
    """Settings of those that value actions."""

    guide: Annotated[
        Path | None,
        Flag(
            "a train-rs run of an agent that values actions, whose best action a share of the random ones are",
            reads=True,
        ),
    ] = None
    guide_share: Annotated[
        float, Flag("share of the random actions that --guide chooses", least=0, most=1, only=(_GUIDED,))
    ] = 0.5

    compat: Annotated[
        str,
        Flag(
            "published defects to learn with, to measure what they do: b10, e1 to e3, or upstream for all that concern "
            "the run (docs/goals.md)"
        ),
    ] = ""

    @property
    def defects(self) -> frozenset[str]:
        """The published defects that `compat` names; UsageError for those that cannot be had here."""
        from bkrl.envs import world
        from bkrl.rewards.upstream import parse

        kind = getattr(self, "curiosity", "none")
        return parse(self.compat, "values" if kind == "none" else kind, world(self.env).family)


@dataclass(frozen=True)
class ValueSettings(GuidedSettings):
    """Settings of pqn and dqn."""

    env_coef: Annotated[float, Flag("weight of the env's own reward; 0 leaves it out", least=0)] = 1.0
    curiosity: Annotated[
        Literal["none", "rnd", "noveld", "icm", "apt", "apt-learnt"],
        Flag("pay for novelty: rnd, noveld, icm, apt in fixed random features or in learnt ones; or none"),
    ] = "none"
    int_coef: Annotated[float, Flag("weight of the novelty reward", least=0, only=(_CURIOUS,))] = 1.0


@dataclass(frozen=True)
class PQNSettings(ValueSettings):
    """Settings of pqn."""

    pqn: PQNConfig = field(default_factory=PQNConfig)


@dataclass(frozen=True)
class DQNSettings(ValueSettings):
    """Settings of dqn."""

    dqn: DQNConfig = field(default_factory=DQNConfig)


def begin(settings: TransferSettings, network: nn.Module, first: str) -> None:
    """Give a network its first weights, and freeze what is not to be trained.

    `first` is the beginning of the names of the weights that read observations.
    """
    from bkrl.agents.build import take_weights

    if settings.init_from is not None:
        take_weights(network, settings.init_from)
    for name, parameter in network.named_parameters():
        trained = settings.trains == "all" or (settings.trains == "heads" and not name.startswith(first))
        parameter.requires_grad_(trained or name.startswith("head."))


def value_agent(settings: GuidedSettings, facts: World, config: PQNConfig | DQNConfig, num_deeds: int = 0) -> QAgent:
    """An agent that values actions, with its first weights and its guide.

    It sees which of `num_deeds` deeds are its goals, if there are any.

    Raises:
        UsageError: the guide sees or does other things.
        InputError: weights that are not there, or are another network's.
    """
    from bkrl.agents import load_agent
    from bkrl.agents.goal import with_goals
    from bkrl.agents.q import QAgent, q_network
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import family
    from bkrl.runs.record import Run

    num_actions, normal = len(facts.action_names), isinstance(config, PQNConfig)
    symbols = family(facts.family).symbols(facts.obs_shape)
    symbols = with_goals(symbols, num_deeds)
    seed = derive_seed(settings.seed, "weights")
    network = q_network(symbols, num_actions, seed, hidden=config.hidden, layer_norm=normal, dueling=not normal)
    if "e1" in settings.defects:
        network.initialise(seed, 1.0)
    agent = QAgent(network, facts.env_id, facts.family, facts.action_names)
    agent.sees_goals = num_deeds > 0
    begin(settings, network, "layers.0.")
    if settings.guide is not None:
        guide = load_agent(Run.open(settings.guide, "train-rs").path)
        if not isinstance(guide, QAgent) or guide.module.spec["symbols"] != network.spec["symbols"]:
            raise UsageError(
                f"--guide {settings.guide}: its policy sees or does other things than this one; train it by the same "
                "--alg."
            )
        agent.guide, agent.guide_share = guide, settings.guide_share
    return agent


def compat_facts(settings: GuidedSettings) -> dict[str, Any]:
    """What the manifest says of a run with published defects; {} without."""
    from bkrl.rewards.upstream import guarantee, named

    defects = settings.defects
    return {"compat": named(defects), "guarantee": guarantee(defects)} if defects else {}


def build(settings: ValueSettings) -> Trainee:
    """See `Method.build`."""
    from bkrl.envs import make_vec, world
    from bkrl.learn.dqn import DQN
    from bkrl.learn.hardware import choose
    from bkrl.learn.pqn import PQN
    from bkrl.rewards.shaping import FORMS
    from bkrl.rewards.streams import EnvReward, RewardStream

    config: Any = settings.pqn if isinstance(settings, PQNSettings) else settings.dqn  # type: ignore[attr-defined]
    if settings.env_coef == 0 and settings.curiosity == "none":
        raise UsageError("--env-coef 0 leaves nothing to be paid for; pass --curiosity too, such as --curiosity rnd.")
    facts, hardware = world(settings.env), choose(settings.hardware, "compact")
    streams: list[RewardStream] = []
    if settings.env_coef:
        streams.append(EnvReward(gamma=config.gamma, coef=settings.env_coef))
    if settings.curiosity != "none":
        kind: Curiosity = settings.curiosity
        paid: dict[str, Any] = {"seed": settings.seed, "gamma": config.gamma, "coef": settings.int_coef}
        paid |= {"with_itself": True} if "e2" in settings.defects else {}
        paid |= {"by_number": True} if "e3" in settings.defects else {}
        streams.append(curious(kind, facts, config.num_envs, hardware, **paid))
    agent = value_agent(settings, facts, config)
    envs = make_vec(settings.env, config.num_envs, backend=settings.backend)
    learner: Any = PQN if isinstance(config, PQNConfig) else DQN
    form = "none" if settings.curiosity == "none" else "novelty"
    return Trainee(
        learner(
            envs,
            agent,
            streams,
            config,
            total_steps=settings.steps,
            seed=settings.seed,
            hardware=hardware,
            bootstrap_truncated="b10" not in settings.defects,
        ),
        {"form": form, "guarantee": FORMS[form].guarantee, "view": "symbolic"} | compat_facts(settings),
        iteration_steps=config.num_envs * config.num_steps,
    )


for _name, _settings, _what in (
    ("pqn", PQNSettings, "Q(λ) on rollouts, without a replay memory"),
    ("dqn", DQNSettings, "double, dueling, from a replay memory"),
):
    _help = f"action values on the world's reward, novelty or both: {_what}"
    register_method(Method(_name, _settings, build, _help, baseline=_name, colour=0))
