"""bk-code, bk-pref, bk-goal, bk-own, bk-evolve: PPO with a potential Φ that shapes the reward or advises.

The five differ in what Φ was made from, and in nothing else. Another method takes a potential by `PotentialSettings`,
`open_potential`, `streams_of`, `advise` and `shaped_training`, as glam does. The run behind a potential is opened once.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import AppliesWhen, Flag
from bkrl.core.reporter import percent
from bkrl.methods.ppo import PPOSettings, facts_of, learner_of, policy_of, set_up
from bkrl.methods.registry import Method, Training, TrainRsConfig, method_of, register_method

if TYPE_CHECKING:
    from bkrl.agents.advised import Advice
    from bkrl.agents.protocol import TrainableAgent
    from bkrl.learn.ppo import PPO
    from bkrl.potentials.protocol import Scaled
    from bkrl.rewards.streams import RewardStream
    from bkrl.runs.record import Run

STARTED = ("start", "progress+start")
"""The forms of shaping in which a policy begins as a potential's advice."""
ADVISED = ("advice", "pbrs+advice", *STARTED)
"""The forms of shaping that take a potential's advice on actions."""
FADING = ("advice", "pbrs+advice", "decay", "progress", "progress+start")
"""The forms of shaping whose weight falls to 0, at the end of training where `--shaping-until` names no step."""
WITHOUT_ADVICE = {
    "advice": "plain PPO",
    "pbrs+advice": "exact shaping alone",
    "start": "plain PPO",
    "progress+start": "progress alone",
}
"""What a run of each of them is where the advice is empty."""

_ADVISED = AppliesWhen("--shaping advice, pbrs+advice, start or progress+start", lambda c: c.shaping in ADVISED)
_FALLING = AppliesWhen(
    "--shaping advice, pbrs+advice, decay, progress or progress+start", lambda c: c.shaping in FADING
)
_PAID = AppliesWhen("every --shaping but advice and start", lambda c: c.shaping not in ("advice", "start"))
_SHIFTED = AppliesWhen(
    "every --shaping but advice, start, progress and progress+start",  # of differences a shift is no part
    lambda c: c.shaping not in ("advice", "start", "progress", "progress+start"),
)
_POTENTIAL = AppliesWhen("--potential", lambda c: c.shaped)
_CORRECT = AppliesWhen("training without --compat", lambda c: not c.compat)


@dataclass(frozen=True)
class PotentialSettings(TrainRsConfig):
    """Settings of the methods that use Φ."""

    potential: Annotated[
        Path | None, Flag("the potential Φ: a train-rm run, or sample:NAME", pooled=True, reads=True)
    ] = None
    shaping: Annotated[
        Literal["pbrs", "advice", "pbrs+advice", "start", "decay", "progress", "progress+start", "pbim", "additive"],
        Flag(
            "how Φ is used. pbrs: exact, keeps the optimal policy, and can stop learning. advice: biases early actions "
            "where the potential has advice. The others, with guarantee and risk: docs/shaping.md",
            pooled=True,
            only=(_POTENTIAL,),
        ),
    ] = "pbrs"
    shaping_coef: Annotated[
        float | None,
        Flag(
            "Φ is multiplied by this  [default: 1; progress: 0.5; decay, pbim, additive: 0.02]",
            least=0,
            only=(_POTENTIAL, _PAID),
        ),
    ] = None
    shaping_shift: Annotated[
        float,
        Flag(
            "added to Φ, which lies in [-1, 0] (best states at 0), in all but terminal states; 1: Φ ≥ 0",
            only=(_POTENTIAL, _SHIFTED, _CORRECT),
        ),
    ] = 0.0
    advice_coef: Annotated[
        float,
        Flag("advice, start: weight β of Ψ(s, a) in the first policy's logits", least=0, only=(_POTENTIAL, _ADVISED)),
    ] = 6.0
    shaping_until: Annotated[
        int,
        Flag(
            "advice, decay, progress: step at which the weight has fallen to 0; 0: the end of --steps",
            least=0,
            only=(_POTENTIAL, _FALLING),
        ),
    ] = 0
    trust: Annotated[
        Literal["full", "auto"],
        Flag(
            "auto: Φ and Ψ are multiplied by 2·accuracy - 1, not below 0, where accuracy is how often Φ orders "
            "moments as exact values, or else held-out ones as labels, do; so one at chance switches itself off. A "
            "constant factor, which keeps each form's guarantee",
            only=(_POTENTIAL, _CORRECT),
        ),
    ] = "full"
    allow_empty_advice: Annotated[
        bool,
        Flag(
            "advice: train although the potential's advice is empty (Ψ = 0), which is plain PPO; else refused",
            only=(_POTENTIAL, _ADVISED),
            identity=False,
        ),
    ] = False

    allow_chance: Annotated[
        bool,
        Flag(
            "train although the labels of the potential are at chance; else refused", only=(_POTENTIAL,), identity=False
        ),
    ] = False

    @property
    def run_dir(self) -> Path:
        form = "" if self.shaping == "pbrs" else f"-{self.shaping}"
        return self.out or Path("logs") / f"{self.alg}{form}-{self.env}-s{self.seed}"

    @property
    def shaped(self) -> bool:
        """Whether a potential takes part."""
        return self.potential is not None

    @property
    def decay_steps(self) -> int:
        """The step at which the weight of advice, or of a decaying bonus, has fallen to 0."""
        return self.shaping_until or self.steps

    @property
    def coef(self) -> float:
        """The factor of Φ."""
        from bkrl.rewards.shaping import FORMS

        return FORMS[self.shaping].coef if self.shaping_coef is None else self.shaping_coef


@dataclass(frozen=True)
class ShapedSettings(PotentialSettings, PPOSettings):
    """Settings of the methods that are PPO with a potential."""

    @property
    def shaped(self) -> bool:
        """Always: without a potential they are refused."""
        return True

    @property
    def _concerned(self) -> str | None:
        variant = method_of(self.alg).variant
        return "code" if variant == "evolve" else variant


class _Advised(Training):
    """A training whose agent begins with advice."""

    def result(self) -> Any:
        agent: Any = self.learner.agent
        return agent.base if agent.now == 0.0 else agent


class Opened(NamedTuple):
    """The potential of a run.

    Attributes:
        made: the train-rm run.
        potential: Φ, with the published defects that are its own.
        psi: its advice Ψ on actions; None where it has none, or the form of shaping takes none.
        trust: the factor of Φ and Ψ (`--trust`), and why it is that.
    """

    made: Run
    potential: Scaled
    psi: Advice | None
    trust: tuple[float, str]


def _check_form(settings: Any, trust: float) -> None:
    """UsageError where the form of shaping cannot work with the other settings."""
    from bkrl.rewards.bonus import MAX_DEBT

    if settings.shaping in STARTED and settings.init_from is not None:
        raise UsageError(f"--shaping {settings.shaping} and --init-from both say what the policy begins as: name one.")
    if settings.shaping != "pbrs" and settings.defects:
        raise UsageError("The published code has one form of shaping: use --compat with --shaping pbrs.")
    shift, gamma = settings.shaping_shift, settings.ppo.gamma
    largest = settings.coef * trust * max(abs(shift), abs(shift - 1.0))  # of a bonus, for Φ lies in [-1, 0]
    if settings.shaping == "pbim" and (gamma == 0.0 or largest / gamma > MAX_DEBT):
        raise UsageError(
            "--shaping pbim takes back later what it paid before, divided by --gamma for each step in between, and "
            f"--gamma {gamma:g} makes that too large to pay after a single step: choose a --gamma nearer to 1, "
            "such as 0.99, or --shaping pbrs."
        )


def build(settings: ShapedSettings) -> Training:
    """PPO with the potential of the settings. UsageError without one."""
    variant = method_of(settings.alg).variant
    if settings.potential is None:
        made = f"of `bkrl train-rm` on {variant} labels"
        made = "that bkrl.write_potential made" if variant == "own" else made
        made = "of `bkrl train-rm` on a run of `bkrl evolve`" if variant == "evolve" else made
        raise UsageError(f"--alg {settings.alg} needs --potential RUN, a run {made}.")
    with ExitStack() as stack:
        opened = open_potential(settings, stack, variant)
        streams = streams_of(settings, opened)
        setup = set_up(settings)
        agent = advise(settings, opened, policy_of(settings, setup, len(streams)))
        learner = learner_of(settings, setup, agent, streams)
        return shaped_training(settings, learner, opened, stack)


def open_potential(settings: Any, stack: ExitStack, variant: str | None = None) -> Opened:
    """The potential of the settings, once it is seen that it fits the method, the form of shaping and the env.

    Args:
        settings: `PotentialSettings` with `ppo`; of their defects Φ has those that are its own.
        stack: closes it.
        variant: what it must have been made from; None: anything.

    Raises:
        UsageError: settings that cannot work.
        InputError: it is missing, damaged or made for another family of envs.
    """
    from bkrl.envs import env_spec
    from bkrl.potentials import advice, load_potential
    from bkrl.rewards.upstream import with_defects
    from bkrl.runs.record import Run

    source, facts = settings.potential, env_spec(settings.env)
    made = Run.open(source, "train-rm", verify=False)
    trust = _trust_in(made) if settings.trust == "auto" else (1.0, "")
    _check_form(settings, trust[0])
    found: Any = made.facts.get("variant")
    if variant is not None and found != variant and (found is not None or variant == "own"):
        what = {"own": "is a potential of your own", "evolve": "won a tournament", None: "has advice alone"}.get(
            found, f"was built from {found} labels"
        )
        raise UsageError(f"{source} {what}; use --alg bk-{found or 'code'}.")
    if (variant or found) == "own" and settings.shaping in ADVISED:
        raise UsageError(
            "A potential of your own says nothing about actions: use --shaping pbrs, progress, decay, pbim or additive."
        )
    if (at_chance := made.facts.get("labels_at_chance")) and not settings.allow_chance and settings.trust == "full":
        raise UsageError(
            f"{source} is of labels at chance ({'; '.join(at_chance)}); --allow-chance trains all the same."
        )
    potential = load_potential(source)
    stack.callback(potential.close)
    artefact = potential.artefact
    if artefact.control == "constant" and settings.shaping != "advice":
        raise UsageError(f"{source} is the control `constant`, which has advice alone (Φ = 0); use --shaping advice.")
    if artefact.kind == "zero" and artefact.control == "none" and settings.shaping not in ADVISED:
        raise UsageError(f"{source} has advice alone (Φ = 0); use --shaping advice or start.")
    same_family = artefact.env_family == facts.family and artefact.obs_shape == facts.obs_shape
    if not same_family or artefact.action_names != facts.action_names:
        what = "observations" if not same_family else "actions"
        raise InputError(
            f"{source} was built in {artefact.env_id} ({artefact.env_family}), and {settings.env} "
            f"({facts.family}) has other {what}; collect and label in such an env, or choose another --potential."
        )
    defective = with_defects(potential, settings.defects)
    if defective is not potential:
        stack.callback(defective.close)
    psi = advice.load(artefact.folder, artefact.settings) if settings.shaping in ADVISED else None
    return Opened(made, defective, psi, trust)


def shaped_training(settings: Any, learner: PPO, opened: Opened, stack: ExitStack) -> Training:
    """A learner that a potential shapes, with what the run says of it; it closes what `stack` has opened."""
    from bkrl.agents.advised import AdvisedAgent
    from bkrl.rewards.shaping import FORMS

    form, reads, agent = settings.shaping, opened.potential.artefact.reads, learner.agent
    advised = isinstance(agent, AdvisedAgent)
    training = (_Advised if advised else Training)(
        learner,
        facts_of(form, settings.defects, learner) | ({"potential_reads": list(reads)} if reads else {}),
        notes=[f"Shaping with {form}; its risk: {FORMS[form].risk}."],
        iteration_steps=settings.ppo.rollout_steps,
        measures=[lambda: {"shaping/advice_weight": cast(Any, agent).now}] if advised else [],
    )
    _warn(training, settings, opened)
    training.opened.append(stack.pop_all())
    return training


def _warn(training: Training, settings: Any, opened: Opened) -> None:
    """Say what may make the run misleading."""
    from bkrl.envs import env_spec
    from bkrl.inspect.report import doubts_of
    from bkrl.potentials import EMPTY
    from bkrl.rewards.shaping import FORMS

    form, source, made = settings.shaping, settings.potential, opened.made
    if _FALLING.holds(settings) and settings.decay_steps > settings.steps:
        left = f"its weight still is {percent(1 - settings.steps / settings.decay_steps)} of the first at the end"
        training.warnings.append(
            f"--shaping-until {settings.decay_steps:,} lies beyond --steps {settings.steps:,}: {left}; give at most "
            "--steps, or leave it out."
        )
        if "advice" not in form:
            training.facts["guarantee"] = f"none: {left}, and {FORMS[form].guarantee}"
    if env_spec(settings.env).env_id in {one["env"] for one in made.facts.get("chosen_on", [])}:
        training.warnings.append(
            f"Φ of {source} was chosen by training in {settings.env}, so this run shows nothing of its worth elsewhere."
        )
    if settings.trust == "auto":
        weight, why = opened.trust
        training.facts["trust"] = weight
        (training.notes if weight else training.warnings).append(
            f"Trust in Φ of {source}: {why}, so it weighs {weight:.2f}." + ("" if weight else " It is switched off.")
        )
    if doubted := doubts_of(made):
        training.warnings.append(
            f"Φ of {source} may mislead: {'; '.join(doubted)}; see `bkrl potential report {source}`."
        )
    if idle := _counted_in_vain(opened.potential, settings.env):
        training.notes.append(
            f"Φ of {source} counts {', '.join(idle).replace('_', ' ')}, and {settings.env} has nothing of the kind: "
            f"that part of Φ never changes here. It was made in {opened.potential.artefact.env_id}; collect and label "
            "in an env that is more alike, if more is to be known of this one."
        )
    if form in ADVISED and (opened.psi is None or opened.psi.empty):
        training.warnings.append(f"The advice of {source} is empty (Ψ = 0), so this run is {WITHOUT_ADVICE[form]}.")
        training.facts["advice"] = EMPTY


def _trust_in(made: Run) -> tuple[float, str]:
    """The weight of a potential by how well it orders moments, and what that is in words.

    Of two moments that Φ orders, an accuracy p says that the truth orders them so with probability p, and the other way
    with 1 - p: the expected sign of the true difference is 2p - 1 times that of Φ's. At chance nothing is left.
    InputError where no accuracy was measured; what a part has of its labels is that of the whole.
    """
    exact, training = made.facts.get("exact_accuracy") or {}, made.facts.get("training", {})
    accuracy, said = exact.get("rate"), "of pairs of moments as exact values do"
    if accuracy is None and "part" not in training:
        accuracy, said = training.get("accuracy"), "of held-out pairs as its labels do"
    if accuracy is None or accuracy != accuracy:
        raise InputError(
            f"No accuracy of {made.path} was measured on anything held out: preferences have one, other labels and "
            "parts where `bkrl label --score exact` scored the labels; leave --trust out."
        )
    weight = min(1.0, max(0.0, 2.0 * accuracy - 1.0))
    return weight, f"it orders {percent(accuracy, 1)} {said}"


def _counted_in_vain(potential: Scaled, env_id: str) -> list[str]:
    """Fields of the episode's memory that Φ heeds, and that are filled where it was made but never in this env."""
    import numpy as np

    from bkrl.envs import family, make_vec, memory_of
    from bkrl.potentials.asked import present

    memory = memory_of(env_id) if potential.reads.memory else None
    known = family(potential.artefact.env_family)
    lost = [] if memory is None else known.never_counted(env_id)
    idle = [name for name in lost if name not in known.never_counted(potential.artefact.env_id)]
    if memory is None or not idle:
        return []
    envs = make_vec(env_id, len(idle) + 1)  # the first episode has counted nothing, each other one field
    seen, _ = envs.reset(seed=[0] * envs.num_envs)
    counted = np.zeros((envs.num_envs, len(memory.names)), np.uint8)
    counted[1 + np.arange(len(idle)), [memory.names.index(name) for name in idle]] = 1
    values = potential.of_numbered(present(seen, potential.reads.horizon, envs.missions(), counted))
    return [name for name, value in zip(idle, values[1:], strict=True) if value != values[0]]


def streams_of(settings: Any, opened: Opened) -> list[RewardStream]:
    """What the agent is paid: the env's reward and what the form of shaping adds."""
    from bkrl.rewards.bonus import Bonus, InvariantBonus, Progress
    from bkrl.rewards.shaped import ShapedReward
    from bkrl.rewards.streams import EnvReward
    from bkrl.rewards.upstream import PublishedReward

    potential, gamma, scale, form = opened.potential, settings.ppo.gamma, settings.reward_scale, settings.shaping
    same: dict[str, Any] = {"reward_scale": scale, "shaping_coef": settings.coef * opened.trust[0]}
    if settings.defects:
        return [PublishedReward(potential, gamma, settings.defects, **same)]
    if form in ("advice", "start"):
        return [EnvReward(gamma=gamma, scale=scale)]
    same["shift"] = settings.shaping_shift
    if form in ("pbrs", "pbrs+advice"):
        return [ShapedReward(potential, gamma, **same)]
    if form == "pbim":
        return [InvariantBonus(potential, gamma, num_envs=settings.ppo.num_envs, **same)]
    if form in ("progress", "progress+start"):
        return [Progress(potential, gamma, until=settings.decay_steps, **same)]
    return [Bonus(potential, gamma, until=settings.decay_steps if form == "decay" else 0, **same)]


def advise(settings: Any, opened: Opened, agent: TrainableAgent) -> TrainableAgent:
    """The agent with the potential's advice on its logits or in its first weights, if that is the form of shaping."""
    from bkrl.agents.advised import AdvisedAgent, begin_as

    form, psi, weight = settings.shaping, opened.psi, settings.advice_coef * opened.trust[0]
    if form not in ADVISED:
        return agent
    if agent.view == "image":
        raise UsageError(
            f"--shaping {form} reads symbols, and this policy sees pictures; use --network compact without "
            "--view image, or --shaping pbrs."
        )
    if (psi is None or psi.empty) and not settings.allow_empty_advice and opened.potential.artefact.control != "zero":
        paid, _, with_advice = form.partition("+")
        plain = f"--shaping {paid}" if with_advice else "plain PPO"
        raise UsageError(
            f"The advice of {settings.potential} is empty (Ψ = 0: it says next to nothing about actions), so --shaping "
            f"{form} would be {plain} under another name; use --shaping pbrs or another potential, or pass "
            "--allow-empty-advice."
        )
    if psi is None or weight == 0.0 or (form in STARTED and psi.empty):
        return agent  # of advice that weighs nothing not even the last digit is left
    if psi.vocabulary is not None and agent.wording.rewords:
        raise UsageError(
            f"Advice of {settings.potential} reads missions as the env words them; leave out --language and --words."
        )
    if form in STARTED:
        started: Any = agent
        try:
            begin_as(started.module, psi, weight)
        except ValueError as error:
            raise UsageError(
                f"--shaping {form} gives the policy the weights of the advice of {settings.potential}, and "
                f"{error}: use --network compact, which sees symbols alone, and a program that has an `advice` of its "
                "own; or --shaping advice."
            ) from None
        return agent
    if agent.view == "text":
        from bkrl.agents.language.advised import AdvisedLanguageAgent as AdvisedAgent  # type: ignore[assignment]
    return AdvisedAgent(agent, psi, weight, settings.decay_steps)


for _colour, (_variant, _needs, _help) in enumerate(
    (
        ("code", "a code potential", "PPO shaped by a program that a language model wrote"),
        ("pref", "a pref potential", "PPO shaped by a network trained on a language model's preferences"),
        ("goal", "a goal potential", "PPO shaped by similarity to goals that a language model suggested"),
        ("own", "a potential of your own", "PPO shaped by what bkrl.write_potential recorded (docs/python.md)"),
        ("evolve", "the winner of a tournament", "PPO shaped by the program that won a tournament (bkrl evolve)"),
    ),
    start=1,
):
    register_method(
        Method(
            f"bk-{_variant}",
            ShapedSettings,
            build,
            _help,
            needs=_needs,
            variant=_variant,
            informed=True,
            form="pbrs",
            colour=_colour if _colour < 4 else None,
        )
    )
