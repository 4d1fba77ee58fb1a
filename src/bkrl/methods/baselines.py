"""random and bot: agents that learn nothing, to stand beside those that do; the floor and the ceiling of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from bkrl.core.errors import UsageError
from bkrl.core.flags import Flag
from bkrl.methods.registry import Method, Training, TrainRsConfig, register_method
from bkrl.methods.settings import form_facts

if TYPE_CHECKING:
    from bkrl.agents.protocol import Agent


@dataclass(frozen=True)
class RandomSettings(TrainRsConfig):
    """Settings of random."""


@dataclass(frozen=True)
class BotSettings(TrainRsConfig):
    """Settings of bot."""

    epsilon: Annotated[float, Flag("the chance with which it takes any action instead", least=0, most=1)] = 0.0


def _training(settings: TrainRsConfig, agent: Agent) -> Training:
    from bkrl.learn.fixed import Fixed

    return Training(Fixed(agent, settings.steps), form_facts("none"), iteration_steps=settings.steps)


def build_random(settings: RandomSettings) -> Training:
    """An agent to which all actions are the same."""
    from bkrl.agents.random import RandomAgent
    from bkrl.envs import env_spec

    facts = env_spec(settings.env)
    return _training(settings, RandomAgent(settings.env, facts.family, facts.action_names))


def build_bot(settings: BotSettings) -> Training:
    """The bot of the env. UsageError where there is none, and with a reference backend."""
    from bkrl.agents.bot import BotAgent

    if settings.backend != "native":
        raise UsageError("The bot plans on the native engine; leave --backend out.")
    return _training(settings, BotAgent.of(settings.env, settings.epsilon))


register_method(
    Method("random", RandomSettings, build_random, "every action equally likely; learns nothing", learns=False)
)
register_method(
    Method(
        "bot",
        BotSettings,
        build_bot,
        "an expert that plans from the state of the env; learns nothing",
        needs="an env with a bot",
        learns=False,
    )
)
