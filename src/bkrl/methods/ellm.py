"""ellm: an agent that is paid for reaching goals that a language model, or a stand-in, finds sensible (Du et al. 2023).

Without a reward of the env this is pretraining: `bkrl train-rs --alg ellm --env Crafter-Typed-Harder`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from bkrl.core.config import PPOConfig
from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.learn.settings import DQNConfig, PQNConfig
from bkrl.methods.goals import GoalSettings, source_of
from bkrl.methods.registry import Method, Training, register_method
from bkrl.methods.settings import defect_facts, form_facts, learning
from bkrl.methods.values import GuidedSettings, begin, value_agent, with_epsilon

if TYPE_CHECKING:
    from bkrl.agents.goal import GoalAgent
    from bkrl.envs.vector import BaseVectorEnv
    from bkrl.learn.hardware import Hardware
    from bkrl.llm.forecast import Outlook
    from bkrl.rewards.streams import RewardStream


@dataclass(frozen=True)
class EllmSettings(GoalSettings, GuidedSettings):
    """Settings of ellm."""

    pqn: PQNConfig = field(default_factory=PQNConfig)


@dataclass(frozen=True)
class EllmDQNSettings(GoalSettings, GuidedSettings):
    """Settings of ellm-dqn."""

    sees: Annotated[
        Literal["symbols", "published"],
        Flag(
            "what the agent sees: symbols and goals; or, as published, four grey pictures of 84×84 and a text of both "
            "through a frozen encoder, which takes 15 kB for each step of --replay-size"
        ),
    ] = "symbols"
    text_encoder: Annotated[
        str,
        Flag(
            "encoder of the text: hash, minilm or hf:PATH",
            reads=True,
            only=(AppliesWhen("--sees published", lambda c: c.sees == "published"),),
        ),
    ] = "hash"
    dqn: DQNConfig = field(default_factory=DQNConfig)

    @property
    def _concerned(self) -> str:
        return "published" if self.sees == "published" else "values"


@dataclass(frozen=True)
class EllmPPOSettings(GoalSettings):
    """Settings of ellm-ppo."""

    network: Annotated[
        Literal["compact", "recurrent"], Flag("policy: compact; or recurrent, the same with a memory of the episode")
    ] = "compact"
    ppo: PPOConfig = field(default_factory=PPOConfig)

    @property
    def _concerned(self) -> str:
        return "goals"


class _Parts(NamedTuple):
    """What the learners of these methods have in common."""

    envs: BaseVectorEnv
    source: Any
    tracker: Any
    streams: list[RewardStream]
    hardware: Hardware


def _parts(settings: GoalSettings, num_envs: int, gamma: float, stack: ExitStack, pictures: bool = False) -> _Parts:
    from bkrl.envs import env_spec, family, make_vec
    from bkrl.goals.source import TASK
    from bkrl.goals.tracker import GoalTracker
    from bkrl.learn.hardware import choose
    from bkrl.rewards.goals import GoalReward
    from bkrl.rewards.streams import EnvReward

    if settings.goal_form == "potential" and settings.env_coef == 0:
        raise UsageError("--goal-form potential shapes the env's own reward; pass --env-coef 1, or leave it out.")
    if settings.suggester == TASK and settings.env_coef == 0:
        raise UsageError("--suggester task shows the env's own mission and pays nothing for it; pass --env-coef 1.")
    if settings.goal_coef == 0 and settings.env_coef == 0:
        raise UsageError("With --env-coef 0 and --goal-coef 0 the agent is paid for nothing; raise one of them.")
    source = source_of(settings, stack)
    tracker = source.to_learn(num_envs)
    streams: list[RewardStream] = []
    if settings.env_coef:
        streams.append(EnvReward(gamma=gamma, coef=settings.env_coef))
    if settings.suggester != TASK:
        form, cut = settings.goal_form, "b10" in settings.defects
        streams.append(GoalReward(cast(GoalTracker, tracker), gamma, settings.goal_coef, form, cut_ends=cut))
    drawn: dict[str, Any] = {"observation": "both"} if pictures and family(env_spec(settings.env).family).images else {}
    envs = make_vec(settings.env, num_envs, backend=settings.backend, **drawn)
    return _Parts(envs, source, tracker, streams, choose(settings.hardware, "compact"))


def _training(
    settings: GoalSettings, config: Any, parts: _Parts, learner_class: Any, agent: GoalAgent, stack: ExitStack
) -> Training:
    """A learner of this class and with these hyper-parameters, and what the run says of it."""
    from bkrl.goals.source import TASK

    how = learning(settings, parts.hardware) | {"goals": parts.tracker}
    how |= {"shared_readers": "e5" in settings.defects} if isinstance(settings, EllmDQNSettings) else {}
    form = "none" if settings.suggester == TASK else "goals" if settings.goal_form == "bonus" else "goals-potential"
    return GoalTraining(
        learner_class(parts.envs, agent, parts.streams, config, **how),
        form_facts(form) | {"view": agent.view} | defect_facts(settings.defects),
        iteration_steps=config.num_envs * config.num_steps,
        opened=[stack.pop_all()],
        source=parts.source,
    )


@dataclass
class GoalTraining(Training):
    """A learner with goals, and where they come from."""

    source: Any = None

    def begin(self, folder: Path) -> None:
        """See `Training.begin`: what is sent and paid is noted in the run's folder, so limits hold over restarts."""
        if self.source.book.session is not None:
            self.source.book.session.keep_account(folder)

    def figures(self) -> dict[str, float]:
        """Nothing; RunFailed where nothing can be asked and not one question was answered."""
        session, (unanswered, asked) = self.source.book.session, self.source.unanswered
        if session and session.stopped and unanswered == asked:
            raise RunFailed(
                f"{session.stopped.rstrip('.')}: there are no goals; mend that, and the same command goes on."
            )
        return {}

    def result(self) -> Any:
        """See `Training.result`; what was asked, and how good the goals were, is known by now."""
        self.facts |= {"goals": self.source.facts(cast(Any, self.learner).collector.view.goals)}
        if self.source.book.session is not None:
            self.facts |= {"usage": self.source.book.session.facts()}
            self.warnings += self.source.book.session.losses
        unanswered, asked = self.source.unanswered
        if unanswered:
            self.warnings.append(f"{unanswered:,} of {asked:,} questions about goals had no answer to the end.")
        return super().result()


def build_ppo(settings: EllmPPOSettings) -> Training:
    """PPO that is paid for goals."""
    from bkrl.agents.goal import goal_agent, with_goals
    from bkrl.agents.networks import build_network
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import family
    from bkrl.learn.ppo import PPO

    with ExitStack() as stack:
        parts = _parts(settings, settings.ppo.num_envs, settings.ppo.gamma, stack)
        facts = parts.envs.env_spec
        symbols = with_goals(family(facts.family).symbols(facts.obs_shape), parts.source.num_deeds)
        network = build_network(
            settings.network,
            obs_shape=(len(symbols.sizes),),
            num_actions=len(facts.action_names),
            num_values=len(parts.streams),
            symbols=symbols,
            seed=derive_seed(settings.seed, "weights"),
        )
        begin(settings, network, ("encoder.",))
        agent = goal_agent(network, facts.env_id, facts.family, facts.action_names)
        agent.goals = parts.source
        return _training(settings, settings.ppo, parts, PPO, agent, stack)


def build_values(settings: Any) -> Training:
    """PQN, or DQN as published, that is paid for goals."""
    from bkrl.learn.dqn import DQN
    from bkrl.learn.pqn import PQN

    config, learner = (settings.pqn, PQN) if isinstance(settings, EllmSettings) else (settings.dqn, DQN)
    if learner is DQN and settings.goal_form == "potential" and not settings.dqn.raw_rewards:
        raise UsageError(
            "--goal-form potential takes back at a true end all that goals have paid, and ellm-dqn clips rewards to "
            "[-1, 1]; pass --raw-rewards, or leave --goal-form out."
        )
    published = learner is DQN and settings.sees == "published"
    with ExitStack() as stack:
        config = with_epsilon(settings, config)
        parts = _parts(settings, config.num_envs, config.gamma, stack, published)
        agent = value_agent(settings, parts.envs.env_spec, config, parts.source.num_deeds, published)
        agent.goals = parts.source
        return _training(settings, config, parts, learner, agent, stack)


def outlook(settings: GoalSettings) -> Outlook:
    from bkrl.envs import env_spec
    from bkrl.goals import outlook
    from bkrl.goals.asked import AskedSuggester
    from bkrl.goals.closed import ClosedSuggester
    from bkrl.learn.loop import milestones

    if not settings.asks:
        raise UsageError(
            f"--suggester {settings.suggester} asks nobody, so --dry-run has nothing to reckon; leave it out."
        )
    with ExitStack() as stack:
        suggester = source_of(settings, stack).book.suggester
        if not isinstance(suggester, AskedSuggester | ClosedSuggester):
            raise UsageError(f"--dry-run reckons the situations of typed Crafter, and {settings.env} has none.")
        price, rounds = suggester.session.price, len(milestones(settings.eval_every, settings.steps, 1))
        each = settings.eval_episodes * (1 + settings.eval_greedy) * env_spec(settings.env).max_steps
        steps = settings.steps + rounds * each  # evaluations meet situations, too
        return outlook.outlook(suggester, settings.env, steps, settings.seed, settings.cache, price)


_WHAT = "paid for goals that a language model or a stand-in suggests, asked once for each situation"
for _name, _settings, _build, _how in (
    ("ellm", EllmSettings, build_values, "PQN"),
    ("ellm-dqn", EllmDQNSettings, build_values, "the published DQN,"),
    ("ellm-ppo", EllmPPOSettings, build_ppo, "PPO"),
):
    register_method(Method(_name, _settings, _build, f"{_how} {_WHAT}", baseline=_name, form="goals", outlook=outlook))
