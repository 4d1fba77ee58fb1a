"""rnd, noveld, deir, icm, apt: PPO that is paid for novelty too. `pqn` and `dqn` take the same by `--curiosity`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag
from bkrl.methods.ppo import PPOSettings, Setup, env_reward, facts_of, learner_of, policy_of, set_up
from bkrl.methods.registry import Method, Training, register_method

if TYPE_CHECKING:
    from bkrl.envs import EnvSpec
    from bkrl.learn.hardware import Hardware
    from bkrl.learn.ppo import PPO
    from bkrl.rewards.streams import RewardStream

Curiosity = Literal["rnd", "noveld", "deir", "icm", "apt", "apt-learnt"]
IntCoef = Annotated[float, Flag("weight of the novelty reward", least=0)]
ALPHA = "α of max(novelty(s′) − α novelty(s), 0); ELLM's baseline has 1"
FIRST_VISIT = "pay only an episode's first visit; ELLM's baseline pays every visit"


@dataclass(frozen=True)
class RNDSettings(PPOSettings):
    """Settings of rnd."""

    int_coef: IntCoef = 0.1
    env_coef: Annotated[float, Flag("weight of the env's own reward; 0 leaves it out", least=0)] = 1.0


@dataclass(frozen=True)
class NovelDSettings(RNDSettings):
    """Settings of noveld."""

    noveld_alpha: Annotated[float, Flag(ALPHA, least=0)] = 0.5
    noveld_first_visit: Annotated[bool, Flag(FIRST_VISIT)] = True


@dataclass(frozen=True)
class APTSettings(RNDSettings):
    """Settings of apt."""

    apt_features: Annotated[
        Literal["random", "learnt"],
        Flag("distances in fixed random features, or in those that a model of the dynamics learns"),
    ] = "random"


def curious(
    kind: Curiosity, settings: Any, facts: EnvSpec, num_envs: int, hardware: Hardware, gamma: float
) -> RewardStream:
    """The novelty stream of this kind, in an env of these facts; UsageError where neither it nor the env pays.

    `settings` have `seed`, `env_coef`, `int_coef` and, for noveld, what is its own.
    """
    from bkrl.core.seeds import derive_seed
    from bkrl.rewards.apt import APT, LearntAPT
    from bkrl.rewards.deir import DEIR
    from bkrl.rewards.icm import ICM
    from bkrl.rewards.rnd import RND, NovelD

    if settings.env_coef == 0 and settings.int_coef == 0:
        raise UsageError("With --env-coef 0 and --int-coef 0 the agent is paid for nothing; raise one of them.")
    made: Any = {"rnd": RND, "noveld": NovelD, "deir": DEIR, "icm": ICM, "apt": APT, "apt-learnt": LearntAPT}[kind]
    more: dict[str, Any] = {"seed": derive_seed(settings.seed, "rnd" if kind == "noveld" else kind)}
    if kind in ("deir", "icm", "apt-learnt"):
        more["num_actions"] = len(facts.action_names)
    if kind == "noveld":
        more |= {"alpha": settings.noveld_alpha, "first_visit": settings.noveld_first_visit}
    return made(facts.obs_shape, num_envs, gamma=gamma, coef=settings.int_coef, device=hardware.device, **more)


def _novelty(settings: RNDSettings, setup: Setup, gamma: float) -> RewardStream:
    """The novelty stream of the method, discounted by `gamma`."""
    kind: Any = settings.alg
    if isinstance(settings, APTSettings) and settings.apt_features == "learnt":
        kind = "apt-learnt"
    return curious(kind, settings, setup.envs.env_spec, settings.ppo.num_envs, setup.hardware, gamma)


def build(settings: RNDSettings) -> Training:
    """PPO that a bonus for novelty pays beside the env's reward.

    Raises:
        UsageError: both weights are 0, or settings that cannot work.
    """
    setup = set_up(settings)
    streams = [env_reward(settings, settings.env_coef)] if settings.env_coef > 0 else []
    streams.append(_novelty(settings, setup, gamma=0.99))
    learner = learner_of(settings, setup, policy_of(settings, setup, len(streams)), streams)
    return Training(learner, facts_of("novelty", settings.defects, learner), iteration_steps=settings.ppo.rollout_steps)


def explorer(settings: RNDSettings, ext_coef: float, int_gamma: float) -> PPO:
    """The explorer of `collect`: this method with a weight of the env's reward and a discount of novelty.

    Raises:
        UsageError: both weights are 0, or settings that cannot work.
    """
    if ext_coef == 0 and settings.int_coef == 0:
        raise UsageError("With --ext-coef 0 and --int-coef 0 the explorer is paid for nothing; raise one of them.")
    setup = set_up(settings)
    streams = [env_reward(settings, ext_coef)] if ext_coef > 0 else []
    streams += [_novelty(settings, setup, int_gamma)] if settings.int_coef > 0 else []
    return learner_of(settings, setup, policy_of(settings, setup, len(streams)), streams)


for _colour, (_name, _settings, _what) in enumerate(
    (
        ("rnd", RNDSettings, "random network distillation"),
        ("noveld", NovelDSettings, "growing novelty at first visits (NovelD)"),
        ("icm", RNDSettings, "what a model of the dynamics predicts badly (ICM)"),
        ("apt", APTSettings, "distance to the nearest states seen lately (APT)"),
        ("deir", RNDSettings, "how unlike all of the episode so far an observation is (DEIR)"),
    ),
    start=4,
):
    _help = f"PPO with a bonus for novelty: {_what} (additive: no guarantee)"
    register_method(Method(_name, _settings, build, _help, form="novelty", colour=_colour))
