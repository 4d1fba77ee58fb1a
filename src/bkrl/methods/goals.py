"""Whose goals an agent pursues: the settings, and where the goals come from that they name."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bkrl.core.config import AskConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.methods.values import TransferSettings

if TYPE_CHECKING:
    from bkrl.envs.family import GoalSpace, TidyGoalSpace
    from bkrl.goals.places import PlaceSource
    from bkrl.goals.protocol import Suggester
    from bkrl.goals.source import Source, TaskSource
    from bkrl.text.encoders import TextEncoder

PLAIN = ("oracle", "novelty", "uniform", "words", "noisy", "task")
_PRIORS = ("zs_mlm",)
_REPLAY, _PROGRESS = "replay:", "progress"
_HOUSE_ONLY = (*_PRIORS, "votes")
"""Those that answer whether a thing belongs in a place, and nothing else."""


def _puts_away(c: Any) -> bool | None:
    """Whether things are put away in the env; None where there is no such env."""
    from bkrl.envs import find_placing

    try:
        return find_placing(c.env) is not None
    except UsageError:
        return None


_NOISY = AppliesWhen("--suggester noisy", lambda c: c.suggested_by == "noisy")
_HOUSE = AppliesWhen("an env in which things are put away (Housekeep)", _puts_away)
_DEEDS = AppliesWhen("an env whose actions are deeds (typed Crafter)", lambda c: not _puts_away(c))
_ASKED = AppliesWhen("--suggester rules, openai:MODEL, local:NAME, gguf:PATH or hf:PATH", lambda c: c.asks)
_WORDED = AppliesWhen("--goal-ask open", lambda c: c.asked_how == "open")
_CAPTIONED = AppliesWhen("--captioner noisy", lambda c: c.captioner == "noisy")
_CHOSEN = AppliesWhen("a --suggester other than uniform and task", lambda c: c.suggester not in ("uniform", "task"))
_ONCE = AppliesWhen("--goal-pay once", lambda c: c.goal_pay == "once" and _CHOSEN.holds(c))
_GOALS = AppliesWhen("a --suggester other than task", lambda c: c.suggester != "task")
_BONUS = AppliesWhen("--goal-form bonus", lambda c: c.goal_form == "bonus")
_SUCCEEDS = AppliesWhen(
    "a --suggester other than novelty and uniform", lambda c: c.suggested_by not in ("novelty", "uniform")
)
_VOTED = AppliesWhen("--goal-ask closed or parts, or in Housekeep", lambda c: c.asked_how != "open" or _puts_away(c))
_SIMILAR = AppliesWhen("--goal-encoder", lambda c: c.goal_encoder != "none")


def _share(says: str, *only: AppliesWhen) -> Flag:
    """Of a setting that is a share or a probability."""
    return Flag(says, least=0, most=1, only=only)


@dataclass(frozen=True)
class DeedSettings:
    """Settings of goals that are deeds, as in typed Crafter."""

    bad_timing: Annotated[float, _share("noisy: share of goals that cannot be done here", _NOISY, _DEEDS)] = 0.0
    nonsense: Annotated[float, _share("noisy: share of goals that no rule of the env allows", _NOISY, _DEEDS)] = 0.0
    impossible: Annotated[float, _share("noisy: share of goals that are no deeds at all", _NOISY, _DEEDS)] = 0.0
    goal_success: Annotated[
        Literal["action", "eval"],
        Flag(
            "a goal counts as reached when its action was attempted (action, as published) or had its effect (eval)",
            only=(_DEEDS, _GOALS, _SUCCEEDS),
        ),
    ] = "action"
    captioner: Annotated[
        Literal["true", "noisy", "learnt"],
        Flag(
            "what labels transitions in training: true (the env), noisy (the env with errors), learnt (a small network "
            "trained on random play)",
            only=(_DEEDS, _GOALS),
        ),
    ] = "true"
    caption_accuracy: Annotated[float, _share("noisy: share of captions that are true", _CAPTIONED)] = 0.9
    wanted: Annotated[
        str,
        Flag(
            "deeds that are wanted, divided by commas, and what they need: each is a goal as often in an "
            "episode as they use what it yields; all: all deeds  \\[default: every deed is a goal once]",
            only=(_DEEDS, _ONCE),
        ),
    ] = ""
    goal_encoder: Annotated[
        str,
        Flag(
            "what finds goals similar: none (equal words), hash, minilm or hf:PATH", only=(_DEEDS, _GOALS), reads=True
        ),
    ] = "none"
    goal_threshold: Annotated[float, _share("cosine above which a goal and a deed are the same", _SIMILAR)] = 0.99
    goal_ask: Annotated[
        Literal["default", "open", "closed", "parts"],
        Flag(
            "open: the suggester names goals, as published; closed: each deed of the env is a question of its own in "
            "each situation; parts: beside each single thing, once for all situations  \\[default: parts for local:, "
            "gguf:, random and equal; else open]",
            only=(_ASKED, _DEEDS),
        ),
    ] = "default"
    strict_goals: Annotated[
        bool, Flag("read replies as the published parser does: every line a '-' bullet", only=(_ASKED, _DEEDS, _WORDED))
    ] = False
    temperature: Annotated[float, Flag("sampling temperature", least=0, only=(_ASKED, _DEEDS, _WORDED))] = 0.1


@dataclass(frozen=True)
class PlaceSettings:
    """Settings of goals in an env in which things are put away, as Housekeep is."""

    accuracy: Annotated[float, _share("noisy: share of the votes' answers that are kept", _NOISY, _HOUSE)] = 0.9
    yes_threshold: Annotated[float, _share("probability that yes must exceed, where things belong", _HOUSE)] = 0.5
    goal_votes: Annotated[
        int, Flag("samples that vote where an endpoint has no log-probabilities", least=1, only=(_ASKED, _VOTED))
    ] = 5
    goal_costs: Annotated[
        Literal["scaled", "clipped", "none"],
        Flag(
            "penalties for picks and places that are no goal, and for failed grabs: .1 and .08 of a goal; .25 and .2, "
            "as the published learner clips them; or none",
            only=(_HOUSE, _BONUS),
        ),
    ] = "scaled"


@dataclass(frozen=True)
class GoalSettings(DeedSettings, PlaceSettings, AskConfig, TransferSettings):
    """Settings of all that pursue goals."""

    env: Annotated[str, Flag("env to explore; one with deeds, such as Crafter-Typed-Harder", pooled=True)] = (
        "Crafter-Typed-Harder"
    )
    suggester: Annotated[
        str,
        Flag(
            "who suggests goals: oracle, noisy, words, novelty, uniform, rules, a language model (openai:MODEL, "
            "local:NAME, gguf:PATH, hf:PATH), replay:RUN, task, progress:SUGGESTER; in Housekeep zs_mlm; `bkrl list "
            "suggesters`"
        ),
    ] = "oracle"
    goal_pay: Annotated[
        Literal["once", "damped", "always"],
        Flag("a goal pays once an episode; damped: 1/√n the n-th time; always, as it does of uniform", only=(_CHOSEN,)),
    ] = "once"
    goal_form: Annotated[
        Literal["bonus", "potential"],
        Flag("bonus: no guarantee; potential: keeps what is optimal for the env's reward", only=(_GOALS,)),
    ] = "bonus"
    goal_coef: Annotated[float, Flag("weight of the goals' reward", least=0, only=(_GOALS,))] = 1.0
    see_goals: Annotated[bool, Flag("show the agent its goals; else it is only paid for them", only=(_GOALS,))] = True
    env_coef: Annotated[float, Flag("weight of the env's own reward; 0, as in pretraining, leaves it out", least=0)] = (
        0.0
    )
    goal_wait: Annotated[
        bool | None,
        Flag(
            "wait for each answer: the same bytes with and without kept replies, but training stands still meanwhile  "
            "[default: on for local:, gguf: and hf:, which else fall behind for good; else off]",
            only=(_ASKED,),
        ),
    ] = None
    max_tokens: Annotated[int, Flag("longest reply, in tokens", least=1, only=(_ASKED,))] = 200

    @property
    def suggested_by(self) -> str:
        """The suggester, without what chooses among its goals."""
        return self.suggester.removeprefix(f"{_PROGRESS}:")

    @property
    def asks(self) -> bool:
        name = self.suggested_by
        return name not in (_PROGRESS, *PLAIN, *_PRIORS, *_own()) and not name.startswith(_REPLAY)

    @property
    def asked_how(self) -> str:
        """How it is asked: open, closed or parts."""
        from bkrl.llm import CONTROLS, LOCAL_MODELS

        usual = "parts" if self.suggested_by.partition(":")[0] in (*LOCAL_MODELS, *CONTROLS) else "open"
        return usual if self.goal_ask == "default" else self.goal_ask

    @property
    def waits(self) -> bool:
        """Whether training waits for each answer."""
        from bkrl.llm import LOCAL_MODELS

        kind = self.suggested_by.partition(":")[0]
        return kind in (*LOCAL_MODELS, "hf") if self.goal_wait is None else self.goal_wait


def _own() -> list[str]:
    """The suggesters of plugins."""
    from bkrl.goals.suggesters import own_suggesters

    return own_suggesters().names()


def source_of(settings: GoalSettings, stack: ExitStack) -> Source | TaskSource | PlaceSource:
    """Where the goals of a run come from; a session that asks is closed with `stack`.

    Raises:
        UsageError: no goals can be set in this env, or settings that do not fit.
        InputError: a key, model or file is not there.
    """
    from bkrl.agents.captioner import LearntCaptioner
    from bkrl.core.seeds import derive_seed
    from bkrl.envs import env_spec, find_placing, situations
    from bkrl.goals.book import GoalBook
    from bkrl.goals.captions import NoisyCaptioner, TrueCaptioner
    from bkrl.goals.match import Matcher
    from bkrl.goals.source import TASK, Source, TaskSource
    from bkrl.goals.suggesters import EveryDeed, plain_suggester
    from bkrl.text.encoders import HashEncoder, open_encoder

    if (places := find_placing(settings.env)) is not None:
        return _places(settings, places, stack)
    known = situations(settings.env)
    wrapped, _, inner = settings.suggester.partition(":")
    if wrapped == _PROGRESS:
        again = inner.partition(":")[0] == _PROGRESS
        source = None if again else source_of(replace(settings, suggester=inner or "oracle"), stack)
        if not isinstance(source, Source) or source.rule != "once":
            raise UsageError(
                f"--suggester {settings.suggester}: name another one after progress:, whose goals are paid once an "
                "episode; it chooses among those."
            )
        source.progress = derive_seed(settings.seed, _PROGRESS)
        return source
    if settings.suggester in _HOUSE_ONLY:
        raise UsageError(
            f"--suggester {settings.suggester} says where things belong, which is asked in Housekeep alone; choose "
            f"another for {settings.env} (docs/goals.md)."
        )
    if settings.suggester == TASK:
        return TaskSource(settings.env)
    encoder: TextEncoder | None = None
    if settings.goal_encoder == "hash":
        encoder = HashEncoder.fit(known.deeds)
    elif settings.goal_encoder != "none":
        encoder = open_encoder({"name": settings.goal_encoder, "size": 0})
    plain: dict[str, Any] = {}
    if settings.suggester in (*PLAIN, *_own()):
        rates = {"bad_timing": settings.bad_timing, "nonsense": settings.nonsense, "impossible": settings.impossible}
        rates = rates if settings.suggester == "noisy" else {}
        plain = {"name": settings.suggester, "rates": rates, "seed": derive_seed(settings.seed, "noisy goals")}
        suggester: Suggester = plain_suggester(situations=known, **plain)
    elif settings.suggester.startswith(_REPLAY):
        suggester = _replayed(settings.suggester, known)
    else:
        suggester = _asked(settings, known, env_spec(settings.env).family, stack)
    book = GoalBook(known, suggester, Matcher(known, encoder, settings.goal_threshold))
    rule = "always" if settings.suggester == "uniform" else settings.goal_pay
    success = "tried" if isinstance(suggester, EveryDeed) else settings.goal_success
    words = {} if encoder is None else {**encoder.settings(), "threshold": settings.goal_threshold}
    source = Source(settings.env, book, rule, success, plain, words, settings.see_goals)  # type: ignore[arg-type]
    source.wanted = _wanted(settings, known)
    if settings.captioner == "noisy":
        seed = derive_seed(settings.seed, "captions")
        source.captioner = NoisyCaptioner(TrueCaptioner(source.success), known, settings.caption_accuracy, seed)
    elif settings.captioner == "learnt":
        source.captioner = LearntCaptioner(settings.env, settings.seed)
    return source


def _wanted(settings: GoalSettings, known: GoalSpace) -> tuple[str, ...]:
    """The deeds that are wanted and those that they need; UsageError for one that can never be reached."""
    from bkrl.core.registry import did_you_mean
    from bkrl.goals.match import normal

    names = [normal(name) for name in settings.wanted.split(",")] if settings.wanted else []
    for name in names if names != ["all"] else []:
        if name not in known.possible:
            raise UsageError(
                f"--wanted: '{name}' can never be reached in {settings.env}, since no action does that."
                f"{did_you_mean(name, known.possible)} It knows: {', '.join(known.possible)}."
            )
    return known.composition(known.possible if names == ["all"] else names)


def _places(settings: GoalSettings, known: TidyGoalSpace, stack: ExitStack) -> PlaceSource:
    """Goals of an env in which things are put away."""
    from bkrl.core.seeds import derive_seed
    from bkrl.goals.belonging import PLAIN as PLAIN_JUDGES
    from bkrl.goals.belonging import open_judge
    from bkrl.goals.places import PlaceBook, PlaceSource

    name = settings.suggester
    if name.startswith(_REPLAY):
        raise UsageError(f"--suggester {name}: only goals that are deeds are replayed, and {settings.env} has others.")
    if name in ("task", "words"):
        why = "has no mission to be shown" if name == "task" else "asks where things belong, which no text says"
        raise UsageError(f"--suggester {name}: {settings.env} {why}; choose another (docs/housekeep.md).")
    choices: dict[str, Any] = {"accuracy": settings.accuracy, "seed": derive_seed(settings.seed, "noisy votes")}
    judge = open_judge(
        name,
        known.house,
        stack,
        **choices,
        votes=settings.goal_votes,
        max_tokens=settings.max_tokens,
        wait=settings.waits,
        asking=settings,
    )
    plain = {"name": name, **choices} if name in PLAIN_JUDGES else {}
    rule = "always" if name == "uniform" else settings.goal_pay
    book = PlaceBook(known, judge, settings.yes_threshold)
    return PlaceSource(settings.env, book, rule, settings.goal_costs, settings.see_goals, plain)


def _replayed(name: str, known: GoalSpace) -> Suggester:
    """The goals of another run.

    Raises:
        UsageError: its goals were asked of nobody, or are of other deeds or rules.
        InputError: there is no such run, or it is damaged.
    """
    from bkrl.agents import load_agent
    from bkrl.core.files import sha256
    from bkrl.goals.source import Source
    from bkrl.goals.suggesters import Replayed
    from bkrl.runs.record import Run

    run = Run.open(Path(name.removeprefix(_REPLAY)), "train-rs")
    source = load_agent(run.path).goals
    if not isinstance(source, Source) or source.plain:
        raise UsageError(
            f"--suggester {name}: that run asked nobody for its goals; name one with --suggester rules, openai:MODEL, "
            "local:NAME, gguf:PATH or hf:PATH."
        )
    theirs = source.book.situations
    # What a deed costs decides which situations are told apart, and so what their numbers mean
    if theirs.deeds != known.deeds or theirs.composition(known.possible) != known.composition(known.possible):
        raise UsageError(
            f"--suggester {name}: that run has other deeds or rules ({source.env_id}); name one that has the same."
        )
    facts = {"replay_of": run.facts["goals"]["suggester"], "replay_sha256": sha256(run.file("policy.json"))}
    return Replayed(name, source.book.goals, facts)


def _asked(settings: GoalSettings, known: Any, family: str, stack: ExitStack) -> Suggester:
    """A suggester that asks the annotator of the settings."""
    from bkrl.goals.asked import AskedSuggester
    from bkrl.goals.closed import ClosedSuggester, PartSuggester
    from bkrl.labelers.material import env_card
    from bkrl.llm import CONTROLS
    from bkrl.llm.choose import Chooser
    from bkrl.llm.opening import open_session
    from bkrl.text.prompts import SHIPPED

    kind = settings.suggester.partition(":")[0]
    ask = settings.asked_how
    closed = ask != "open"
    if kind in CONTROLS and not closed:
        raise UsageError(f"--suggester {kind} answers closed questions only; leave --goal-ask open out.")
    if kind == "rules" and closed:
        raise UsageError(f"--suggester rules names goals in words; leave --goal-ask {ask} out.")
    session = open_session(settings.suggester, settings, stack, PLAIN, "suggester", seed=settings.seed)
    if closed:
        chooser = Chooser(session, votes=settings.goal_votes, max_tokens=settings.max_tokens, wait=settings.waits)
        made = PartSuggester if ask == "parts" else ClosedSuggester
        return made(settings.suggester, chooser, known, env_card(settings.env))
    return AskedSuggester(
        settings.suggester,
        session,
        known,
        SHIPPED,
        family,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        strict=settings.strict_goals,
        wait=settings.waits,
    )
