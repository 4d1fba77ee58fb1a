"""ellm: an agent that is paid for reaching goals that a language model, or a stand-in, finds sensible (Du et al. 2023).

Without a reward of the env this is pretraining: `bkrl train-rs --alg ellm --env Crafter-Typed-Harder`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from bkrl.core.config import DQNConfig, PPOConfig, PQNConfig
from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.flags import Flag, Only
from bkrl.methods.registry import Method, Trainee, register_method
from bkrl.methods.values import GuidedSettings, TransferSettings, begin, compat_facts, value_agent, with_epsilon

if TYPE_CHECKING:
    from bkrl.agents.goal import GoalAgent
    from bkrl.envs.family import Placing, World
    from bkrl.envs.vector import WorldVectorEnv
    from bkrl.goals.places import PlaceSource
    from bkrl.goals.protocol import Suggester
    from bkrl.goals.source import Source, TaskSource
    from bkrl.learn.hardware import Hardware
    from bkrl.llm.forecast import Outlook
    from bkrl.rewards.streams import RewardStream
    from bkrl.text.encoders import TextEncoder

PLAIN = ("oracle", "novelty", "uniform", "noisy", "task")
_PRIORS = ("zs_mlm",)


def _puts_away(c: Any) -> bool | None:
    """Whether things are put away in the env; None where there is no such env."""
    from bkrl.envs import find_placing

    try:
        return find_placing(c.env) is not None
    except UsageError:
        return None


_NOISY = Only("--suggester noisy", lambda c: c.suggester == "noisy")
_HOUSE = Only("an env in which things are put away (Housekeep)", _puts_away)
_DEEDS = Only("an env whose actions are deeds (typed Crafter)", lambda c: not _puts_away(c))
_ASKED = Only("--suggester rules, openai:MODEL, hf:PATH or replay:RUN", lambda c: c.suggester not in PLAIN + _PRIORS)
_CAPTIONED = Only("--captioner noisy", lambda c: c.captioner == "noisy")
_SIMILAR = Only("--goal-encoder", lambda c: c.goal_encoder != "none")


def _published(c: Any) -> bool:
    return bool(c.sees == "published")


@dataclass(frozen=True)
class GoalSettings(TransferSettings):
    """Settings of all that pursue goals."""

    env: Annotated[str, Flag("world to explore; one with deeds, such as Crafter-Typed-Harder", pooled=True)] = (
        "Crafter-Typed-Harder"
    )
    suggester: Annotated[
        str,
        Flag(
            "who suggests goals: oracle (the world's own rules), noisy (the oracle with errors), novelty and uniform "
            "(every deed, paid once an episode or every time), rules (the embedded annotator, which reads the text "
            "alone), openai:MODEL, hf:PATH, replay:RUN_OR_FILE; task: the env's own mission, for typed tasks. In "
            "Housekeep oracle is people's votes, noisy the votes with errors, zs_mlm a masked language model's prior",
        ),
    ] = "oracle"
    bad_timing: Annotated[
        float, Flag("noisy: share of goals that cannot be done here", least=0, most=1, only=(_NOISY, _DEEDS))
    ] = 0.0
    nonsense: Annotated[
        float, Flag("noisy: share of goals that no rule of the world allows", least=0, most=1, only=(_NOISY, _DEEDS))
    ] = 0.0
    impossible: Annotated[
        float, Flag("noisy: share of goals that are no deeds at all", least=0, most=1, only=(_NOISY, _DEEDS))
    ] = 0.0
    accuracy: Annotated[
        float, Flag("noisy: share of the votes' answers that are kept", least=0, most=1, only=(_NOISY, _HOUSE))
    ] = 0.9
    yes_threshold: Annotated[
        float, Flag("probability that yes must exceed, where things belong", least=0, most=1, only=(_HOUSE,))
    ] = 0.5
    goal_votes: Annotated[
        int, Flag("samples that vote where an endpoint has no log-probabilities", least=1, only=(_ASKED, _HOUSE))
    ] = 5
    goal_costs: Annotated[
        Literal["scaled", "clipped", "none"],
        Flag(
            "what a pick or place that is no goal costs, and a grab that fails: .1 and .08 of a goal; .25 and .2, as "
            "the published learner clips them; or nothing",
            only=(_HOUSE,),
        ),
    ] = "scaled"
    goal_pay: Annotated[
        Literal["once", "damped", "always"],
        Flag("a goal pays once an episode, ever less with the times it was paid (1/√n), or always; uniform: always"),
    ] = "once"
    goal_form: Annotated[
        Literal["bonus", "potential"],
        Flag("goals pay a bonus (no guarantee), or as a potential, which keeps what is optimal for the env's reward"),
    ] = "bonus"
    goal_coef: Annotated[float, Flag("weight of the goals' reward", least=0)] = 1.0
    goal_success: Annotated[
        Literal["action", "eval"],
        Flag(
            "when a deed counts: by the published permissive rule (action), or when the game did it (eval)",
            only=(_DEEDS,),
        ),
    ] = "action"
    captioner: Annotated[
        Literal["true", "noisy", "learnt"],
        Flag(
            "who says in training which deed was done: the env; the env with errors; or a small network that has seen "
            "random play, and sees what was before and after",
            only=(_DEEDS,),
        ),
    ] = "true"
    caption_accuracy: Annotated[
        float, Flag("noisy: share of captions that are true", least=0, most=1, only=(_CAPTIONED,))
    ] = 0.9
    see_goals: Annotated[bool, Flag("show the agent its goals; otherwise it is only paid for them")] = True
    goal_encoder: Annotated[
        str,
        Flag(
            "what finds goals similar: none (equal words), hash, minilm, hf:PATH; see --goal-threshold", only=(_DEEDS,)
        ),
    ] = "none"
    goal_threshold: Annotated[
        float, Flag("cosine that a goal and a deed must exceed to be the same", least=0, most=1, only=(_SIMILAR,))
    ] = 0.99
    env_coef: Annotated[float, Flag("weight of the env's own reward; 0, as in pretraining, leaves it out", least=0)] = (
        0.0
    )
    goal_wait: Annotated[
        bool,
        Flag(
            "wait for each answer: the same bytes with and without kept replies, but training stands still meanwhile",
            only=(_ASKED,),
        ),
    ] = False
    strict_goals: Annotated[
        bool, Flag("read replies as the published parser does: every line a '-' bullet", only=(_ASKED, _DEEDS))
    ] = False
    temperature: Annotated[float, Flag("sampling temperature", least=0, only=(_ASKED, _DEEDS))] = 0.1
    max_tokens: Annotated[int, Flag("longest reply, in tokens", least=1, only=(_ASKED,))] = 200
    max_requests: Annotated[
        int, Flag("send at most this many requests; 0: no limit", least=0, only=(_ASKED,), identity=False)
    ] = 0
    max_cost: Annotated[
        float, Flag("spend at most so many US dollars; 0: no limit", least=0, only=(_ASKED,), identity=False)
    ] = 0.0
    prices: Annotated[
        Path | None,
        Flag("own price list (TOML), read before the shipped one; see docs/labels.md", only=(_ASKED,), identity=False),
    ] = None
    concurrency: Annotated[
        int,
        Flag(
            "most requests in flight at once; adapts to what the server allows", least=1, only=(_ASKED,), identity=False
        ),
    ] = 16
    dry_run: Annotated[
        bool,
        Flag(
            "show tokens, price and three of the prompts; ask and write nothing",
            only=(_ASKED,),
            identity=False,
            planned=True,
        ),
    ] = False
    cache: Annotated[Path, Flag("where replies are kept", only=(_ASKED,), identity=False)] = Path("cache")


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
            "through a frozen encoder, which takes 15 kB for each step of --replay-size",
        ),
    ] = "symbols"
    text_encoder: Annotated[
        str, Flag("encoder of the text: hash, minilm or hf:PATH", only=(Only("--sees published", _published),))
    ] = "hash"
    dqn: DQNConfig = field(default_factory=DQNConfig)

    @property
    def _concerned(self) -> str:
        return "published" if self.sees == "published" else "values"


@dataclass(frozen=True)
class EllmPPOSettings(GoalSettings):
    """Settings of ellm-ppo."""

    ppo: PPOConfig = field(default_factory=PPOConfig)


def source_of(settings: GoalSettings, stack: ExitStack) -> Source | TaskSource | PlaceSource:
    """Where the goals of a run come from; a session that asks is closed with `stack`.

    Raises:
        UsageError: no goals can be set in this env, or settings that do not fit.
        InputError: a key, model or file is not there.
    """
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import find_placing, situations, world
    from bkrl.goals.book import GoalBook
    from bkrl.goals.captions import Learnt, Noisy, Told
    from bkrl.goals.match import Matcher
    from bkrl.goals.source import TASK, Source, TaskSource
    from bkrl.goals.suggesters import plain_suggester
    from bkrl.text.encoders import HashEncoder, open_encoder

    if (places := find_placing(settings.env)) is not None:
        return _places(settings, places, stack)
    known = situations(settings.env)
    if settings.suggester == TASK:
        return TaskSource(settings.env)
    encoder: TextEncoder | None = None
    if settings.goal_encoder == "hash":
        encoder = HashEncoder.fit(known.deeds)
    elif settings.goal_encoder != "none":
        encoder = open_encoder({"name": settings.goal_encoder, "size": 0})
    plain: dict[str, Any] = {}
    if settings.suggester in PLAIN:
        rates = {kind: getattr(settings, kind) for kind in ("bad_timing", "nonsense", "impossible")}
        rates = rates if settings.suggester == "noisy" else {}
        plain = {"name": settings.suggester, "rates": rates, "seed": derive_seed(settings.seed, "noisy goals")}
        suggester: Suggester | None = plain_suggester(situations=known, **plain)
    else:
        suggester = _asked(settings, known, world(settings.env).family, stack)
    book = GoalBook(known, suggester, Matcher(known, encoder, settings.goal_threshold))
    assert suggester is not None
    rule = "always" if settings.suggester == "uniform" else settings.goal_pay
    success = "tried" if suggester.every_deed else settings.goal_success
    words = {} if encoder is None else {**encoder.settings(), "threshold": settings.goal_threshold}
    source = Source(settings.env, book, rule, success, plain, words, settings.see_goals)  # type: ignore[arg-type]
    if settings.captioner == "noisy":
        seed = derive_seed(settings.seed, "captions")
        source.captioner = Noisy(Told(source.success), known, settings.caption_accuracy, seed)
    elif settings.captioner == "learnt":
        source.captioner = Learnt(settings.env, settings.seed)
    return source


def _places(settings: GoalSettings, known: Placing, stack: ExitStack) -> PlaceSource:
    """Goals of a world in which things are put away."""
    from bkrl.core.seeds import derive_seed
    from bkrl.goals.belonging import PLAIN as PLAIN_JUDGES
    from bkrl.goals.belonging import open_judge
    from bkrl.goals.places import PlaceBook, PlaceSource

    name = settings.suggester
    if name == "task":
        raise UsageError(f"{settings.env} has no mission to be shown; choose another --suggester.")
    choices: dict[str, Any] = {"accuracy": settings.accuracy, "seed": derive_seed(settings.seed, "noisy votes")}
    judge = open_judge(
        name,
        known.house,
        stack,
        **choices,
        votes=settings.goal_votes,
        max_tokens=settings.max_tokens,
        wait=settings.goal_wait,
        max_requests=settings.max_requests,
        max_cost=settings.max_cost,
        cache=settings.cache,
    )
    plain = {"name": name, **choices} if name in PLAIN_JUDGES else {}
    rule = "always" if name == "uniform" else settings.goal_pay
    book = PlaceBook(known, judge, settings.yes_threshold)
    return PlaceSource(settings.env, book, rule, settings.goal_costs, settings.see_goals, plain)


def _asked(settings: GoalSettings, known: Any, family: str, stack: ExitStack) -> Suggester:
    """A suggester that asks the annotator of the settings."""
    from bkrl.goals.asked import AskedSuggester
    from bkrl.llm.beside import open_session
    from bkrl.text.prompts import SHIPPED

    session = open_session(
        settings.suggester,
        stack,
        settings.cache,
        settings.max_requests,
        settings.max_cost,
        others=PLAIN,
        prices=settings.prices,
        concurrency=settings.concurrency,
        asking=not settings.dry_run,
    )
    return AskedSuggester(
        settings.suggester,
        session,
        known,
        SHIPPED,
        family,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        strict=settings.strict_goals,
        wait=settings.goal_wait,
    )


class _Parts(NamedTuple):
    """What the learners of these methods have in common."""

    facts: World
    envs: WorldVectorEnv
    source: Any
    tracker: Any
    streams: list[RewardStream]
    hardware: Hardware


def _parts(settings: GoalSettings, num_envs: int, gamma: float, stack: ExitStack) -> _Parts:
    from bkrl.envs import make_vec, world
    from bkrl.goals.source import TASK
    from bkrl.goals.tracker import GoalTracker
    from bkrl.learn.hardware import choose
    from bkrl.rewards.goals import GoalReward
    from bkrl.rewards.streams import EnvReward

    if settings.goal_form == "potential" and settings.env_coef == 0:
        raise UsageError("--goal-form potential shapes the env's own reward; pass --env-coef 1, or leave it out.")
    if settings.suggester == TASK and settings.env_coef == 0:
        raise UsageError("--suggester task shows the env's own mission and pays nothing for it; pass --env-coef 1.")
    source = source_of(settings, stack)
    tracker = source.to_learn(num_envs)
    streams: list[RewardStream] = []
    if settings.env_coef:
        streams.append(EnvReward(gamma=gamma, coef=settings.env_coef))
    if settings.suggester != TASK:
        streams.append(GoalReward(cast(GoalTracker, tracker), gamma, settings.goal_coef, settings.goal_form))
    drawn: dict[str, Any] = {"observation": "both"} if getattr(settings, "sees", "symbols") == "published" else {}
    envs = make_vec(settings.env, num_envs, backend=settings.backend, **drawn)
    return _Parts(world(settings.env), envs, source, tracker, streams, choose(settings.hardware, "compact"))


def _trainee(
    settings: GoalSettings, config: Any, parts: _Parts, learner_class: Any, agent: GoalAgent, stack: ExitStack
) -> Trainee:
    """A learner of this class and with these hyper-parameters, and what the run says of it."""
    from bkrl.goals.source import TASK
    from bkrl.rewards.shaping import FORMS

    more = {"bootstrap_truncated": "b10" not in settings.defects} if isinstance(settings, GuidedSettings) else {}
    more |= {"shared_readers": "e5" in settings.defects} if isinstance(settings, EllmDQNSettings) else {}
    learner = learner_class(
        parts.envs,
        agent,
        parts.streams,
        config,
        total_steps=settings.steps,
        seed=settings.seed,
        hardware=parts.hardware,
        goals=parts.tracker,
        **more,
    )
    form = "none" if settings.suggester == TASK else "goals" if settings.goal_form == "bonus" else "goals-potential"
    return GoalTrainee(
        learner,
        {"form": form, "guarantee": FORMS[form].guarantee, "view": "symbolic"}
        | (compat_facts(settings) if isinstance(settings, GuidedSettings) else {}),
        iteration_steps=config.num_envs * config.num_steps,
        opened=[stack.pop_all()],
        source=parts.source,
        limits=(settings.max_requests or None, settings.max_cost or None),
    )


@dataclass
class GoalTrainee(Trainee):
    """A learner with goals, and where they come from."""

    source: Any = None
    limits: tuple[int | None, float | None] = (None, None)

    def begin(self, folder: Path) -> None:
        """See `Trainee.begin`: what is sent and paid is noted in the run's folder, so limits hold over restarts."""
        from bkrl.llm.budget import FILE, Budget

        book = self.source.book
        session = getattr(getattr(book, "suggester", None) or getattr(book, "judge", None), "session", None)
        if session is not None and session.backend.identity is not None:
            session.budget = Budget(folder / FILE, *self.limits)
            self.opened.append(session.budget)

    def figures(self) -> dict[str, float]:
        """Nothing; RunFailed where nothing can be asked and not one question was answered."""
        stopped, (unanswered, asked) = self.source.stopped, self.source.unanswered
        if stopped and unanswered == asked:
            raise RunFailed(f"{stopped.rstrip('.')}: there are no goals; mend that, and the same command goes on.")
        return {}

    def result(self) -> Any:
        """See `Trainee.result`; what was asked, and how good the goals were, is known by now."""
        self.facts |= {"goals": self.source.facts(cast(Any, self.learner).collector.view.goals)}
        unanswered, asked = self.source.unanswered
        if unanswered:
            self.warnings.append(f"{unanswered:,} of {asked:,} questions about goals had no answer to the end.")
        return super().result()


def build_ppo(settings: EllmPPOSettings) -> Trainee:
    """See `Method.build`."""
    from bkrl.agents.goal import GoalAgent, goal_network
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import family
    from bkrl.learn.ppo import PPO

    with ExitStack() as stack:
        parts = _parts(settings, settings.ppo.num_envs, settings.ppo.gamma, stack)
        symbols = family(parts.facts.family).symbols(parts.facts.obs_shape)
        seed = derive_seed(settings.seed, "weights")
        num_actions = len(parts.facts.action_names)
        network = goal_network(symbols, parts.source.num_deeds, num_actions, len(parts.streams), 128, seed)
        begin(settings, network, ("encoder.",))
        agent = GoalAgent(network, parts.facts.env_id, parts.facts.family, parts.facts.action_names)
        agent.goals = parts.source
        return _trainee(settings, settings.ppo, parts, PPO, agent, stack)


def build_pqn(settings: EllmSettings) -> Trainee:
    """See `Method.build`."""
    from bkrl.learn.pqn import PQN

    with ExitStack() as stack:
        config = with_epsilon(settings, settings.pqn)
        parts = _parts(settings, config.num_envs, config.gamma, stack)
        agent = value_agent(settings, parts.facts, config, num_deeds=parts.source.num_deeds)
        agent.goals = parts.source
        return _trainee(settings, config, parts, PQN, agent, stack)


def build_dqn(settings: EllmDQNSettings) -> Trainee:
    """See `Method.build`."""
    from bkrl.learn.dqn import DQN

    with ExitStack() as stack:
        config = with_epsilon(settings, settings.dqn)
        parts = _parts(settings, config.num_envs, config.gamma, stack)
        agent = value_agent(settings, parts.facts, config, num_deeds=parts.source.num_deeds)
        agent.goals = parts.source
        return _trainee(settings, config, parts, DQN, agent, stack)


def outlook(settings: GoalSettings) -> Outlook:
    """See `Method.outlook`."""
    from bkrl.goals import outlook
    from bkrl.goals.asked import AskedSuggester

    with ExitStack() as stack:
        suggester = getattr(source_of(settings, stack).book, "suggester", None)
        if not isinstance(suggester, AskedSuggester):
            raise UsageError(f"--dry-run reckons the situations of typed Crafter, and {settings.env} has none.")
        price = suggester.session.price
        return outlook.outlook(suggester, settings.env, settings.steps, settings.seed, settings.cache, price)


_WHAT = "paid for goals that a language model or a stand-in suggests, asked once for each situation"
for _name, _settings, _build, _how in (
    ("ellm", EllmSettings, build_pqn, "PQN"),
    ("ellm-dqn", EllmDQNSettings, build_dqn, "the published DQN,"),
    ("ellm-ppo", EllmPPOSettings, build_ppo, "PPO"),
):
    register_method(Method(_name, _settings, _build, f"{_how} {_WHAT}", baseline=_name, form="goals", outlook=outlook))
