"""glam: a language model as the policy: it scores the names of its actions after a prompt, and PPO trains it.

glam's settings were chosen for small models. glam-published has those with which Carta et al. (2023, arXiv 2302.02662)
trained Flan-T5, but for the rule of scoring, the broadcast value loss, and truncated episodes, which go on being worth
what their last view is. A potential may shape the reward, as those of the bk- methods do.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bkrl.core.config import HardwareConfig, NumMinibatches, NumSteps, PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.flags import AppliesWhen, Flag, flags_of, option_name
from bkrl.methods.ppo import Setup, env_reward, facts_of, learner_of
from bkrl.methods.registry import Method, Training, TrainRsConfig, register_method
from bkrl.methods.settings import PublishedDefects, StartingWeights, form_facts
from bkrl.methods.shaped import PotentialSettings, advise, open_potential, shaped_training, streams_of
from bkrl.runs.folder import locate

if TYPE_CHECKING:
    from bkrl.agents.language.agent import LanguageAgent
    from bkrl.agents.language.probes import Probes
    from bkrl.agents.protocol import Agent
    from bkrl.learn.hardware import Hardware

KINDS = {
    "P0": "random weights: it has read nothing",
    "P1": "a small model made by bkrl lm make, which has read captions and missions; it is not Flan-T5",
    "P2": "a small model made by bkrl lm make, which has read captions and missions, and answers of a bot; it is not "
    "Flan-T5",
    "P3": "a model of the user's own",
}
"""What the manifest says of a language model, by its level."""

_TAKEN = "lm_settings_of_init_from"
"""The fact that says what a run took from the settings of its --init-from."""

_CLONES = ("bc", "dagger")
"""Methods that train the actions of a language model and no critic."""


def _known(settings: Any) -> bool:
    """Whether its --init-from, if it has one, is there already."""
    source = vars(settings).get("init_from")
    return source is None or (locate(source) / "manifest.json").is_file()


def reads(settings: Any) -> bool | None:
    """Whether a language model acts, that of --lm or of --init-from; None: the latter is not there yet."""
    return bool(settings.lm.lm) or (bool(like_its_source(settings)[0].lm.lm) if _known(settings) else None)


_LM = (AppliesWhen("--lm", reads),)
_LORA = (AppliesWhen("--train lora", lambda c: c.lm.train == "lora"),)
_SCORES = (*_LM, AppliesWhen("scored actions, without --action-head", lambda c: not c.lm.action_head))


def _shares(settings: GlamSettings) -> bool | None:
    """Whether the critic is a head of the policy's model; None: it is that of a run which is not there yet."""
    critic = (like_its_source(settings)[0] if _known(settings) else settings).lm.critic
    return critic == "shared" or "g7" in settings.defects or (False if _known(settings) else None)


_SHARED = AppliesWhen("--critic shared, or --compat g7", _shares)
_OWN = (AppliesWhen("--critic own, without --compat g7", lambda c: not _SHARED.holds(c)),)
_TAUGHT = (AppliesWhen("--imitate", lambda c: bool(c.imitate)),)
_STARTED = (AppliesWhen("--init-from", lambda c: c.init_from is not None),)

LM = Annotated[
    str,
    Flag(
        "the model: one of `bkrl lm list`, a GGUF file, a folder of transformers, a run of `bkrl lm make` "
        "or of train-rs, sample:lm-t5, or tiny-t5 and "
        "tiny-causal, small ones with random weights; nothing is downloaded",
        reads=True,
    ),
]


@dataclass(frozen=True)
class LMConfig:
    """A language model that acts."""

    lm: LM = "tiny-t5"
    pretrained: Annotated[bool, Flag("take its weights; without, new ones are drawn", only=_LM)] = True
    load_embedding: Annotated[
        bool,
        Flag(
            "of new weights, keep those of tokens (published as NPE)",
            only=(*_LM, AppliesWhen("--no-pretrained", lambda c: not c.lm.pretrained)),
        ),
    ] = False
    chat: Annotated[bool, Flag("use the model's chat template, if it has one", only=_LM, seldom=True)] = True
    prompt: Annotated[
        Literal["glam", "lamorel", "balrog"],
        Flag("prompts: GLAM's, the shorter ones of Lamorel's examples, or BALROG's chat", only=_LM),
    ] = "glam"
    language: Annotated[
        Literal["", "en", "fr"], Flag("language of captions, missions and actions  [default: the env's own]", only=_LM)
    ] = ""
    words: Annotated[
        Literal["", "nouns", "colors", "invented-nouns", "invented-colors", "invented-words"],
        Flag("words that stand for those of the env, in captions and missions", only=_LM, seldom=True),
    ] = ""
    action_words: Annotated[
        str,
        Flag(
            "names of the actions: canonical, synonyms-1, synonyms-2, augmented, or your own with commas between them, "
            "in the env's order",
            only=_LM,
            seldom=True,
        ),
    ] = ""
    goal_label: Annotated[
        str,
        Flag("what stands before the mission in prompts: speaker, agent, or words of your own", only=_LM, seldom=True),
    ] = ""
    window: Annotated[
        int, Flag("observations in a prompt, the present one included; 1 is fastest", least=1, only=_LM)
    ] = 3
    score_rule: Annotated[
        Literal["logprob", "restricted", "prob", "logit"],
        Flag(
            "what token probabilities become: the log-probability of a name; that among the names' tokens; its "
            "probability (GLAM, 2023-02); the sum of raw logits (GLAM, 2023-05)",
            only=_SCORES,
        ),
    ] = "logprob"
    normalise: Annotated[
        Literal["none", "token", "word", "unconditional"],
        Flag(
            "divide scores by a name's tokens or words, or take off what it scores after no prompt (published: none)",
            only=_SCORES,
        ),
    ] = "token"
    score_temperature: Annotated[
        float, Flag("scores are divided by this before the softmax", least=0.001, only=_SCORES)
    ] = 1.0
    score_eos: Annotated[bool, Flag("the end of a text counts as a token of each name", only=_SCORES, seldom=True)] = (
        False
    )
    action_head: Annotated[
        bool, Flag("a head says how likely actions are; no name is scored (published as AFlan, NPA)", only=_LM)
    ] = False
    head_size: Annotated[int, Flag("width of the two hidden layers of heads (published: 1024)", least=1, only=_LM)] = 64
    head_activation: Annotated[
        Literal["sigmoid", "relu", "tanh"], Flag("between the layers of heads (published: sigmoid)", only=_LM)
    ] = "relu"
    critic: Annotated[
        Literal["own", "shared"],
        Flag(
            "own: values are fitted apart, on whitened states, in as many updates as they need; shared: by PPO's "
            "loss, which moves the model, too (published, and with --compat g7)",
            only=_LM,
        ),
    ] = "own"
    train: Annotated[
        Literal["auto", "all", "lora", "heads"],
        Flag(
            "all weights, low-rank adapters (pip install 'bkrl[lm]'), or heads alone; auto: all weights, or from 50 "
            "million on adapters with alpha 32 on all linear layers of the top quarter",
            only=_LM,
        ),
    ] = "auto"
    frozen: Annotated[
        int, Flag("so many lower layers stay as they are; -1: the whole encoder", least=-1, only=_LM, seldom=True)
    ] = 0
    lora_rank: Annotated[int, Flag("rank of adapters", least=1, only=_LORA)] = 8
    lora_alpha: Annotated[int, Flag("adapters count this, divided by their rank", least=1, only=_LORA)] = 8
    max_tokens_at_once: Annotated[
        int,
        Flag("prompts are scored together up to so many tokens, which bounds memory", least=1, only=_LM, seldom=True),
    ] = 2**14


def language_agent(
    settings: Any, env_id: str, num_values: int, defects: frozenset[str] = frozenset(), model_seed: int | None = None
) -> LanguageAgent:
    """An untrained agent; `settings` have `lm` and `seed`, and `hardware` where something is trained. Of the defects of
    the published code those of prompts are the agent's. `model_seed`: of a drawn model, if not that of the settings.

    Raises:
        UsageError: settings that cannot work.
        InputError: there is no such model.
    """
    from bkrl.agents.language.adapters import Trainable, by_size
    from bkrl.agents.language.agent import LanguageAgent, LanguageSettings
    from bkrl.agents.language.catalogue import open_language_model
    from bkrl.agents.language.scorer import Scoring
    from bkrl.core.seeds import derive_seed
    from bkrl.text.wording import Wording

    c: LMConfig = settings.lm
    if num_values and c.train == "heads" and not c.action_head:
        raise UsageError(
            "--train heads leaves nothing of this policy to train: add --action-head, or choose --train lora."
        )
    seed = derive_seed(settings.seed, "weights")
    asked = vars(settings).get("hardware", HardwareConfig())
    on: Any = {"exact": asked.precision == "fp32", "device": asked.device}
    drawn = seed if model_seed is None else model_seed
    lm = open_language_model(c.lm, chat=c.chat, pretrained=c.pretrained, embeddings=c.load_embedding, seed=drawn)
    how = LanguageSettings(
        Scoring(c.score_rule, c.normalise, c.score_temperature, c.score_eos),
        by_size(lm, c.frozen, **on) if c.train == "auto" else Trainable(c.train, c.frozen, c.lora_rank, c.lora_alpha),
        c.action_head,
        (c.head_size, c.head_size),
        c.head_activation,
        c.critic == "own",
        form=c.prompt,
        observations=c.window,
        most_tokens=c.max_tokens_at_once,
    )
    names = c.action_words if "," not in c.action_words else tuple(map(str.strip, c.action_words.split(",")))
    wording = Wording(c.language, c.words, names, c.goal_label, defects & {"g4"})
    return LanguageAgent(lm, env_id, num_values, how, wording, seed)


def hardware_of(settings: TrainRsConfig, agent: LanguageAgent) -> Hardware:
    """Where a language model computes, by its size; UsageError as of `choose`."""
    from bkrl.learn.hardware import LANGUAGE, choose

    return choose(settings.hardware, f"small {LANGUAGE}" if agent.lm.small else LANGUAGE)


def like_its_source(settings: Any) -> tuple[Any, dict[str, Any]]:
    """Settings whose language model is that of --init-from in all that was left at its default, and what that is."""
    from bkrl.runs.record import Run

    source = vars(settings).get("init_from")
    if source is None or source.is_file():
        return settings, {}
    run = Run.open(source, "train-rs")
    there = (run.config["config"].get("lm") or {}) | run.facts.get(_TAKEN, {})  # which it took itself
    if run.config["config"]["alg"] in _CLONES:  # it trained no critic: only what was chosen of one is taken
        unused = {"critic"} | (set() if there.get("action_head") else {"head_size", "head_activation"})
        there = {name: one for name, one in there.items() if name not in unused or one != vars(LMConfig())[name]}
    own = {one.name: one for one in flags_of(type(settings)) if one.path[0] == "lm"}
    taken = {
        name: there[name]
        for name, one in own.items()
        if name in there and one.of(settings) == one.default and there[name] not in (one.default, "")
    }
    return replace(settings, lm=replace(settings.lm, **taken)), taken


def going_on(settings: Any, taken: dict[str, Any]) -> list[str]:
    """What is said of --init-from, of whose settings these are `taken`."""
    same = ", ".join(f"{option_name((name,))} {value}" for name, value in taken.items())
    said = f"Training goes on from {settings.init_from}{same and f', with its {same}'}."
    return [] if settings.init_from is None else [said]


def starting_agent(settings: Any, defects: frozenset[str] = frozenset()) -> LanguageAgent:
    """A new agent, or one that starts where that of --init-from ended: with all that is trained of it, heads too."""
    from bkrl.agents import load_agent
    from bkrl.agents.language.advised import AdvisedLanguageAgent
    from bkrl.agents.language.agent import LanguageAgent
    from bkrl.agents.networks import misfit
    from bkrl.runs.record import Run

    if (source := settings.init_from) is None:
        return language_agent(settings, settings.env, 1, defects)
    run = Run.open(source, "train-rs")
    other = load_agent(run.path)
    if isinstance(other, AdvisedLanguageAgent):  # its advice was that of its run
        other = other.base
    if not isinstance(other, LanguageAgent):
        raise InputError(
            f"--init-from: the policy of {source} is no language model; choose a run of glam, or of bc or dagger --lm."
        )
    if other.settings.scoring.bias:
        raise InputError(f"--init-from: {source} has --bias-prompts, which are not taken over; name its model as --lm.")
    seed = other.lm.origin.seed if other.settings.training.partial else None  # what is frozen is to be the same
    agent = language_agent(settings, settings.env, 1, defects, seed)
    weights = other.module.state_dict()
    anew = agent.settings.own_critic != other.settings.own_critic  # its values are of another kind
    if anew or (run.config["config"]["alg"] in _CLONES and agent.settings.head_sizes != other.settings.head_sizes):
        of_values = "heads.value."
        fresh = {name: one for name, one in agent.module.state_dict().items() if name.startswith(of_values)}
        weights = {name: one for name, one in weights.items() if not name.startswith(of_values)} | fresh
    problem = misfit(agent.module, weights)
    alike = replace(other.settings.training, half=agent.settings.training.half)  # as layers compute here
    if problem or alike != agent.settings.training:
        why = problem or f"it trained {other.settings.training}"
        raise InputError(
            f"--init-from: the policy of {source} is another than this one ({why}); give the same --lm, --train, "
            "--frozen and heads."
        )
    if agent.frozen_unlike(other):
        raise InputError(
            f"--init-from: what is frozen of the policy of {source} is not what {agent.lm.name} holds; give the model "
            f"that it was trained on ({other.lm.name}), with the same --pretrained and --load-embedding."
        )
    agent.module.load_state_dict(weights)
    return agent


def lm_facts(
    agent: LanguageAgent, init_from: Path | None = None, taken: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the manifest says of a language model that is itself, or goes on from, the policy of a run or none."""
    from bkrl.runs.record import Run

    run = locate(init_from or Path(agent.lm.name))
    trained = (run / "manifest.json").is_file() and Run.open(run, verify=False).stage == "train-rs"
    return {
        "lm": agent.lm.name,
        "lm_kind": agent.lm.kind,
        "level": agent.lm.level,
        "lm_is": ("a policy that was trained here; before that, " if trained else "") + KINDS[agent.lm.level],
        "lm_parameters": sum(parameter.numel() for parameter in agent.lm.model.parameters()),
        "lm_training": agent.settings.training.text,
        "wording": {name: value for name, value in agent.wording.to_json().items() if value},
        **({_TAKEN: taken} if taken else {}),
    }


@dataclass(frozen=True)
class GlamPPO(PPOConfig):
    """Hyper-parameters that small models learn with; results/log says what they were tuned on."""

    num_steps: NumSteps = 20
    learning_rate: Annotated[
        float,
        Flag("Adam's step size; 0: 1e-6, as published, 1e-4 with adapters, 1e-3 for small models made here", least=0),
    ] = 0.0
    num_minibatches: NumMinibatches = 4
    ent_coef: Annotated[float, Flag("weight of the entropy bonus", least=0)] = 0.02
    vf_coef: Annotated[float, Flag("weight of the value loss", least=0, only=(_SHARED,))] = 0.5
    clip_vloss: Annotated[bool, Flag("clip the value loss by --clip-coef, as the policy's is", only=(_SHARED,))] = False
    target_kl: Annotated[
        float,
        Flag(
            "end an update before its KL divergence passes this; 0: never, as while --imitate teaches; -1: 0.03 with "
            "--init-from, else never",
            least=-1,
        ),
    ] = -1.0


RewardScale = Annotated[float, Flag("the env's reward is multiplied by this (published: 20)", least=0)]
PUBLISHED = GlamPPO(
    num_envs=32,
    num_steps=40,
    gae_lambda=0.99,
    num_minibatches=20,
    ent_coef=0.01,
    vf_coef=1.0,
    norm_adv=False,
    clip_vloss=True,
    target_kl=0.0,
)
"""The published hyper-parameters. Their value loss has no factor ½, so its weight here is twice theirs."""


@dataclass(frozen=True)
class GlamSettings(PotentialSettings, StartingWeights, PublishedDefects):
    """Settings of glam."""

    init_from: Annotated[
        Path | None, Flag("start from these weights: a train-rs run of glam, or of bc or dagger --lm", reads=True)
    ] = None
    reward_scale: RewardScale = 1.0
    critic_learning_rate: Annotated[
        float, Flag("Adam's step size for --critic own", least=0, only=_OWN, seldom=True)
    ] = 1e-3
    critic_first: Annotated[
        int,
        Flag(
            "minibatches from which the critic learns before the policy moves; -1: 200 with --init-from, else 0",
            least=-1,
            only=_OWN,
            seldom=True,
        ),
    ] = -1
    imitate: Annotated[
        str,
        Flag(
            "learn from a teacher beside the reward: bot, or a train-rs run whose policy acts in this env", reads=True
        ),
    ] = ""
    imitate_coef: Annotated[
        float, Flag("weight of KL(teacher, policy) at the first step; it falls linearly to 0", least=0, only=_TAUGHT)
    ] = 0.5
    imitate_until: Annotated[int, Flag("env steps after which that weight is 0; 0: --steps", least=0, only=_TAUGHT)] = 0
    stop_on_fall: Annotated[
        bool, Flag("end training when an evaluation succeeds ten points less often than the first one", only=_STARTED)
    ] = False
    lm: LMConfig = field(default_factory=LMConfig)
    ppo: GlamPPO = field(default_factory=GlamPPO)

    @property
    def _concerned(self) -> str:
        return "lm"

    @property
    def run_dir(self) -> Path:
        form = f"-{self.shaping}" if self.potential else ""
        return self.out or Path("logs") / f"{self.alg}{form}-{self.env}-s{self.seed}"


@dataclass(frozen=True)
class PublishedSettings(GlamSettings):
    """Settings of glam-published."""

    reward_scale: RewardScale = 20.0
    lm: LMConfig = field(default_factory=lambda: LMConfig(head_size=1024, head_activation="sigmoid", critic="shared"))
    ppo: GlamPPO = field(default_factory=lambda: PUBLISHED)


def build(settings: GlamSettings) -> Training:
    """A language model as the policy, trained by PPO."""
    from bkrl.envs import make_vec
    from bkrl.learn.critic import CriticLearner
    from bkrl.learn.imitation import Imitation

    defects = settings.defects
    settings, taken = like_its_source(settings)
    if "g7" in defects:  # it is one of the loss that trains a shared value head
        settings = replace(settings, lm=replace(settings.lm, critic="shared"))
    agent = starting_agent(settings, defects)
    probes = _probed(agent)
    hardware, adapted = hardware_of(settings, agent), agent.settings.training.train == "lora"
    rate = settings.ppo.learning_rate or (1e-3 if agent.lm.small else 1e-4 if adapted else 1e-6)
    goes_on = settings.init_from is not None
    kl = settings.ppo.target_kl if settings.ppo.target_kl >= 0 else 0.03 if goes_on else 0.0
    settings = replace(settings, ppo=replace(settings.ppo, learning_rate=rate, target_kl=kl))
    more: dict[str, Any] = {}
    if settings.imitate:
        more["teacher"] = _teacher(settings)
        more["imitation"] = Imitation(settings.imitate_coef, settings.imitate_until or settings.steps)
    if settings.lm.critic == "own":
        first = settings.critic_first if settings.critic_first >= 0 else 200 if goes_on else 0
        more["critic"] = CriticLearner(
            agent, learning_rate=settings.critic_learning_rate, first=first, seed=settings.seed
        )

    with ExitStack() as stack:
        opened = None if settings.potential is None else open_potential(settings, stack)
        setup = Setup(make_vec(settings.env, settings.ppo.num_envs, backend=settings.backend), "text", hardware)
        if opened is None:
            learner = learner_of(settings, setup, agent, [env_reward(settings)], **more)
            training = Training(learner, facts_of("none", defects, learner), iteration_steps=settings.ppo.rollout_steps)
        else:
            streams, advised = streams_of(settings, opened), advise(settings, opened, agent)
            learner = learner_of(settings, setup, advised, streams, **more)
            training = shaped_training(settings, learner, opened, stack)
    training.facts |= lm_facts(agent, settings.init_from, taken)
    training.notes += going_on(settings, taken) or [f"{agent.lm.name} is {agent.lm.level}, {training.facts['lm_is']}."]
    if probes is not None:
        training.measures.append(lambda: probes.figures(training.learner.agent))
    return training


def _teacher(settings: GlamSettings) -> Agent:
    """Whom --imitate names.

    Raises:
        UsageError: this env has no bot, or the policy reads what envs show only on request.
        InputError: there is no such run, or its policy acts in other envs.
    """
    from bkrl.agents import load_agent
    from bkrl.agents.bot import BotAgent
    from bkrl.agents.build import check_acts_in
    from bkrl.envs import env_spec
    from bkrl.runs.record import Run

    if settings.imitate == "bot":
        return BotAgent.of(settings.env)
    source = Run.open(Path(settings.imitate), "train-rs").path
    teacher = load_agent(source)
    check_acts_in(teacher, env_spec(settings.env), source)
    if unseen := {"image", "goal"} & {*teacher.wants}:
        raise UsageError(f"--imitate: the policy of {source} reads a {unseen.pop()}, which glam's envs do not show.")
    return teacher


def _probed(agent: LanguageAgent) -> Probes | None:
    """Moments of its env, if it has a bot; InputError where the model cannot read what is said there."""
    from bkrl.agents.language.probes import Probes

    probes = Probes.of(agent)
    if probes is not None:
        agent.scorer.prompts(agent.prompts(probes.views)[0])
    return probes


@dataclass(frozen=True)
class ZeroShotSettings(TrainRsConfig):
    """Settings of zero-shot."""

    lm: LMConfig = field(default_factory=LMConfig)
    bias_prompts: Annotated[
        int,
        Flag(
            "take off what each name scores on average after so many prompts of random play, 100 say; 0: nothing",
            least=0,
            most=10_000,
            only=_SCORES,
        ),
    ] = 0


def build_zero_shot(settings: ZeroShotSettings) -> Training:
    """A language model as the policy, as it is."""
    from bkrl.agents.language.probes import bias_of
    from bkrl.learn.fixed import Fixed

    agent = language_agent(settings, settings.env, 0)
    agent.prepare(hardware_of(settings, agent).device, compile=False)
    _probed(agent)
    if settings.bias_prompts:
        agent.biased(bias_of(agent, settings.bias_prompts))
    facts = {**form_facts("none"), "view": "text", "mission": True, **lm_facts(agent)}
    return Training(Fixed(agent, settings.steps), facts, iteration_steps=settings.steps)


register_method(
    Method("glam", GlamSettings, build, "PPO with a language model as the policy, and a potential if one is given")
)
register_method(
    Method(
        "glam-published",
        PublishedSettings,
        build,
        "glam with the settings that Flan-T5 was trained with; small models hardly learn with them",
    )
)
register_method(
    Method(
        "zero-shot", ZeroShotSettings, build_zero_shot, "a language model that acts as it is; learns nothing",
        learns=False,
    )
)  # fmt: skip
