"""rnd: PPO that is paid for novelty too, by random network distillation (Burda et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from bkrl.core.flags import Flag
from bkrl.methods.ppo import PPOSettings, defects_of, env_reward, facts_of, ppo_of
from bkrl.methods.registry import Method, Trainee, register_method

if TYPE_CHECKING:
    from bkrl.envs import World
    from bkrl.learn.hardware import Hardware
    from bkrl.rewards.streams import RewardStream


@dataclass(frozen=True)
class RNDSettings(PPOSettings):
    """Settings of rnd."""

    int_coef: Annotated[float, Flag("rnd: weight of the novelty reward", least=0)] = 0.1


def build(settings: RNDSettings) -> Trainee:
    """See `Method.build`."""
    from bkrl.core.seeds import derive_seed
    from bkrl.rewards.rnd import RND

    def streams(world: World, hardware: Hardware) -> list[RewardStream]:
        seed, coef = derive_seed(settings.seed, "rnd"), settings.int_coef
        novelty = RND(world.obs_shape, settings.ppo.num_envs, coef=coef, seed=seed, device=hardware.device)
        return [env_reward(settings), novelty]

    defects = defects_of(settings)
    learner = ppo_of(settings, streams, defects=defects)
    return Trainee(learner, facts_of("novelty", defects, learner), iteration_steps=settings.rollout_steps)


register_method(
    Method(
        "rnd",
        RNDSettings,
        build,
        "PPO with a random-network-distillation novelty bonus (additive: no guarantee)",
        form="novelty",
        colour=4,
    )
)
