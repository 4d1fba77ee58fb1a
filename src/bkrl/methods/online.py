"""bk-online: PPO shaped by preferences that are asked for while it learns, about what it does (after Klissarov et al.'s
Motif and Zheng et al.'s ONI).

Pairs of segments of the policy's own experience go to the annotator in the background. At fixed steps a preference
network is fitted to the answers that were accepted, and is Φ from then on: dynamic potential-based shaping.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bkrl.core.config import Annotator, AskConfig
from bkrl.core.errors import RunFailed, UsageError
from bkrl.core.flags import Flag
from bkrl.methods.ppo import PPOSettings, facts_of, learner_of, policy_of, set_up
from bkrl.methods.registry import Method, Training, register_method

if TYPE_CHECKING:
    from bkrl.labelers.live import LiveComparisons
    from bkrl.llm.forecast import Outlook

_LEAST_ENVS = 10
"""Of ten envs eight are for training, one to stop on, one to test on (`data.partition`)."""
_REPLY_TOKENS = 60


@dataclass(frozen=True)
class OnlineSettings(AskConfig, PPOSettings):
    """Settings of bk-online."""

    llm: Annotator = "rules"
    label_every: Annotated[
        int, Flag("env steps after which pairs are asked about, answers accepted and Φ fitted again", least=1)
    ] = 16_384
    label_num: Annotated[int, Flag("pairs asked about each time", least=1)] = 100
    length: Annotated[int, Flag("actions in a segment, and past actions that Φ sees", least=1)] = 5
    epochs: Annotated[int, Flag("most passes over the pairs in each fit", least=1)] = 30
    label_control: Annotated[
        Literal["none", "shuffled"],
        Flag(
            "control: shuffled deals the accepted labels out anew before each fit, so that they say nothing",
            pooled=True,
            seldom=True,
        ),
    ] = "none"
    shaping_coef: Annotated[float, Flag("Φ is multiplied by this", least=0)] = 1.0
    label_wait: Annotated[
        bool,
        Flag("wait for each answer: the same bytes with and without kept replies, but training stands still meanwhile"),
    ] = False
    temperature: Annotated[float, Flag("sampling temperature", least=0)] = 0.5
    max_tokens: Annotated[int, Flag("longest reply, in tokens", least=1)] = 2048


@dataclass
class OnlineTraining(Training):
    """A learner whose potential is asked for as it learns."""

    comparisons: LiveComparisons = None  # type: ignore[assignment]
    potential: Any = None

    def begin(self, folder: Path) -> None:
        """See `Training.begin`: what is accepted, sent and paid is noted in the run's folder."""
        self.comparisons.open(folder)
        self.comparisons.session.keep_account(folder)

    def figures(self) -> dict[str, float]:
        stopped = self.comparisons.session.stopped
        if stopped and not len(self.comparisons.usable):
            raise RunFailed(f"{stopped.rstrip('.')}: there is no potential; mend that, and the same command goes on.")
        return {}

    def result(self) -> Any:
        asked, session = self.comparisons, self.comparisons.session
        self.facts |= {
            "live": {**session.backend.facts(), **asked.facts(), "fits": self.potential.fits},
            "usage": session.facts(),
        }
        self.warnings += session.losses
        if session.stopped:
            self.warnings.append(f"{session.stopped.rstrip('.')}; Φ rests on the answers that came before.")
        if not self.potential.fits:
            self.warnings.append(
                "Φ was 0 to the end, so this run is plain PPO: there were never enough answers to fit a network; "
                "lower --label-every, or raise --label-num or --steps."
            )
        return super().result()


def build(settings: OnlineSettings) -> Training:
    """PPO shaped by preferences that are asked for while it learns."""
    from bkrl.potentials.preference.live import LivePreferences
    from bkrl.rewards.dynamic import DynamicReward
    from bkrl.rewards.shaping import FORMS

    _check(settings)
    with ExitStack() as stack:
        comparisons = comparisons_of(settings, stack)
        stack.callback(comparisons.close)
        every, times = _points(settings)
        setup = set_up(settings)
        potential = LivePreferences(
            comparisons,
            setup.envs.env_spec,
            every=every,
            times=times,
            epochs=settings.epochs,
            seed=settings.seed,
            shuffled=settings.label_control == "shuffled",
        )
        scale, coef, cut = settings.reward_scale, settings.shaping_coef, "b10" in settings.defects
        streams = [DynamicReward(potential, settings.ppo.gamma, cut_ends=cut, reward_scale=scale, shaping_coef=coef)]
        learner = learner_of(settings, setup, policy_of(settings, setup, len(streams)), streams)
        return OnlineTraining(
            learner,
            facts_of("dynamic", settings.defects, learner),
            notes=[f"Shaping with dynamic potentials; their risk: {FORMS['dynamic'].risk}."],
            iteration_steps=settings.ppo.rollout_steps,
            opened=[stack.pop_all()],
            comparisons=comparisons,
            potential=potential,
        )


def _points(settings: OnlineSettings) -> tuple[int, int]:
    """Env steps between two times at which answers are accepted, and how many of these come before the run ends."""
    rollout = settings.ppo.rollout_steps
    every = max(settings.label_every, rollout)
    return every, (settings.steps - 1) // rollout * rollout // every


def _check(settings: OnlineSettings) -> None:
    """UsageError where there can be no potential."""
    from bkrl.envs import env_spec
    from bkrl.llm import CLOSED_ONLY, check_knows
    from bkrl.llm.opening import check_name

    check_name(settings.llm)
    check_knows(settings.llm, settings.env, env_spec(settings.env).family)
    if settings.llm.partition(":")[0] in CLOSED_ONLY:
        raise UsageError(
            f"--llm {settings.llm} answers closed questions only, and --alg bk-online asks open ones; a control is "
            "--label-control shuffled."
        )
    if settings.ppo.num_envs < _LEAST_ENVS:
        raise UsageError(
            f"--alg bk-online keeps one env in ten to test its potential on, so --num-envs must be {_LEAST_ENVS} or "
            f"more, not {settings.ppo.num_envs}."
        )
    if settings.label_every >= settings.steps:
        raise UsageError(
            f"--label-every {settings.label_every:,} is never reached in {settings.steps:,} steps; choose a smaller "
            "one, or more --steps."
        )


def comparisons_of(settings: OnlineSettings, stack: ExitStack) -> LiveComparisons:
    """What asks the annotator of the settings; its session is closed with `stack`.

    Raises:
        UsageError: no annotator has the name, a cost is bounded and not known, or no answer could be accepted.
        InputError: a key, model or file is not there.
    """
    from bkrl.envs import captioner, env_spec
    from bkrl.labelers.asking import Sampling
    from bkrl.labelers.live import LiveComparisons
    from bkrl.labelers.material import env_card
    from bkrl.llm.opening import open_session

    facts = env_spec(settings.env)
    session = open_session(settings.llm, settings, stack, seed=settings.seed)
    comparisons = LiveComparisons(
        session,
        env_card(settings.env),
        captioner(settings.env),
        facts.obs_shape,
        length=settings.length,
        count=settings.label_num,
        sampling=Sampling(settings.temperature, settings.max_tokens),
        seed=settings.seed,
        wait=settings.label_wait,
    )
    if not comparisons.at_once and _points(settings)[1] < 2:
        raise UsageError(
            f"--label-every {settings.label_every:,} leaves no time in {settings.steps:,} steps at which an answer "
            "could be accepted; choose a smaller one, more --steps, or --label-wait."
        )
    return comparisons


def outlook(settings: OnlineSettings) -> Outlook:
    """See `Method.outlook`: what is asked about in play by chance stands for what a policy does."""
    from bkrl.llm.forecast import forecast, shown

    _check(settings)
    with ExitStack() as stack:
        comparisons = comparisons_of(settings, stack)
        requests = comparisons.by_chance(settings.env, settings.ppo.num_envs)
        session = comparisons.session
        found = forecast(requests, _REPLY_TOKENS, settings.cache, session.backend.identity, session.price)
    times = _points(settings)[1] - (not comparisons.at_once)
    expected = times * settings.label_num
    share = expected / max(1, len(requests))
    note = (
        f"At most {expected:,} requests: {settings.label_num:,} pairs at each of {times:,} times. Which pairs depends "
        "on what the policy does, so these are of play by chance."
    )
    return found.times(share, requests=expected, kept=0, prompts=shown(requests[:3]), notes=(note,))


register_method(
    Method(
        "bk-online",
        OnlineSettings,
        build,
        "PPO shaped by preferences on what it does, asked for as it learns (dynamic potential-based shaping)",
        needs="an annotator",
        informed=True,
        form="dynamic",
        outlook=outlook,
    )
)
