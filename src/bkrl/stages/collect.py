"""collect: experience of an exploring agent, annotated with text.

The explorer `rnd` learns: PPO is paid for novelty (RND), and for the env's reward only if `--ext-coef` says so. At
regular points of training the policy is kept; when training is over each kept policy plays whole episodes, sampling its
actions, and those are the dataset. The other explorers (random, a bot, the policy of a run) play as they are. So the
dataset is a function of the policies alone, and a run that is killed while it records simply records again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.agents import load_agent
from bkrl.agents.bot import BotAgent
from bkrl.agents.build import check_acts_in, observation_options, options_of
from bkrl.agents.play import MOST_AT_ONCE
from bkrl.agents.protocol import Agent
from bkrl.agents.random import RandomAgent
from bkrl.agents.record import open_writer, record
from bkrl.core.config import CollectConfig
from bkrl.core.errors import UsageError
from bkrl.core.flags import flags_of, option_name
from bkrl.core.jit import announced
from bkrl.core.registry import did_you_mean
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.writer import DatasetWriter
from bkrl.envs import EnvSpec, captioner, env_spec, make_vec, mission_is_hidden
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.loop import finished, train
from bkrl.learn.ppo import PPO
from bkrl.methods import curiosity
from bkrl.runs.folder import locate
from bkrl.runs.provenance import Node
from bkrl.runs.record import Run
from bkrl.runs.tracking import check_tracker, tracked
from bkrl.stages import MISSION_NOT_VISIBLE, to_do

_NAMED = ("rnd", "random", "bot")
"""The explorers that are not runs."""


@announced
def run(config: CollectConfig, reporter: Reporter) -> Run:
    """Train the explorer, if it is one that learns, then record.

    Raises:
        UsageError: both reward weights are 0, there is no bot for this env, or settings that cannot work.
        InputError: the explorer is no complete train-rs run, or its policy cannot act in this env.
        Diverged: a loss, or the network after an update, is not finite; the last good checkpoint is kept.
    """
    facts = env_spec(config.env)
    config = config.in_language_of(facts.language)
    describe = captioner(config.env, config.language)
    check_tracker(config.track)
    if config.explorer not in _NAMED and not locate(Path(config.explorer)).exists() and "/" not in config.explorer:
        near = did_you_mean(config.explorer, _NAMED)
        raise UsageError(
            f"There is no explorer '{config.explorer}'.{near} Known: rnd, random, bot, or a run of a policy."
        )
    source = None if config.explorer in _NAMED else Run.open(Path(config.explorer), "train-rs")
    learner = None
    agent, trained = (None, 0) if config.explorer == "rnd" else _acting(config, facts, source)
    if to_do(config):
        torch.set_num_threads(config.threads)
        learner = explorer(config) if agent is None else None
    result = Run.begin(config, "collect", {} if source is None else {"explorer": source.path}, reporter)
    if result.complete:
        return result
    who = config.explorer if source is None else source.path.absolute().name
    if learner is not None:
        points, count = recording_points(config), config.episodes_per_checkpoint
        policies = result.file("policies")
        _say_what_is_recorded(config, points, reporter)
        _explore(config, learner, points, policies, result, reporter)
        options, view = observation_options(facts, config.network, config.view)
        agents = {point: load_agent(policies, _name(point)) for point in points}
        made = [name for point in points for name in _files(point)]
        free = config.ext_coef == 0
        learnt: dict[str, Any] = {"view": view, "steps": learner.step, "checkpoints": points, "reward_free": free}
    else:
        assert agent is not None
        count, options, made, learnt = config.episodes, options_of(agent), [], {}
        agents = {trained: agent}
    envs = make_vec(config.env, min(count, MOST_AT_ONCE), backend=config.backend, **options)
    writer = open_writer(result, facts, envs, config.language, played_by="" if learner is not None else who)
    seeds = {point: derive_seed(config.seed, "record", number) for number, point in enumerate(agents)}
    with reporter.progress("record", len(agents) * count, "episodes") as update:
        returns = _record(agents, seeds, envs, count, writer, describe, update)
    envs.close()
    writer.close()
    result.finish(
        [*writer.outputs, *made],
        env_id=facts.env_id,
        explorer=who,
        recorded_episodes=writer.num_episodes,
        recorded_steps=int(writer.column("length").sum()),
        mean_return=float(np.mean(returns)),
        success_rate=float(writer.column("success").mean()),
        **learnt,
    )
    finished(result)
    return result


def _acting(config: CollectConfig, facts: EnvSpec, source: Run | None) -> tuple[Agent, int]:
    """An explorer that does not learn, and the env steps that it has been trained for."""
    for one in flags_of(CollectConfig):
        if one.path[0] in ("ppo", "hardware", "network", "view", "track") and one.of(config) != one.default:
            raise UsageError(f"{option_name(one.path)} has no effect with --explorer {config.explorer}; leave it out.")
    if source is not None:
        agent = load_agent(source.path)
        check_acts_in(agent, facts, source.path)
        return agent, Node("", source.stage, source, "").steps
    if config.explorer == "random":
        return RandomAgent(facts.env_id, facts.family, facts.action_names), 0
    return BotAgent.of(facts.env_id, config.epsilon), 0


def _explore(
    config: CollectConfig, learner: PPO, points: list[int], policies: Path, result: Run, reporter: Reporter
) -> None:
    """Train the explorer and keep its policy at each of the points."""
    policies.mkdir(exist_ok=True)
    with tracked(config.track, result, reporter):
        train(
            learner,
            result,
            reporter,
            title=f"explore {config.env}",
            checkpoint_every=max(config.steps // 10, 1),
            milestones=points,
            at_milestone=lambda number, step: _keep(learner.agent, policies, step),
            kept=lambda number: _files(points[number]),
        )
    learner.close()


def _say_what_is_recorded(config: CollectConfig, points: list[int], reporter: Reporter) -> None:
    """Warn where the dataset will be another one than the settings promise."""
    if len(points) < config.checkpoints:
        reporter.warn(
            f"{config.steps:,} steps are too few for {config.checkpoints} recording points "
            f"{config.ppo.rollout_steps:,} steps apart; recording at {len(points)}."
        )
    if mission_is_hidden(config.env) and config.ext_coef > 0:
        reporter.warn(MISSION_NOT_VISIBLE.format(env=config.env, who="the explorer"))


def recording_points(config: CollectConfig) -> list[int]:
    """The steps at which the policy is kept: from 0 to the end, evenly, at ends of rollouts; one is at the end."""
    size = config.ppo.rollout_steps
    last = -(-config.steps // size)
    if config.checkpoints == 1:
        return [last * size]
    return sorted({round(rollout) * size for rollout in np.linspace(0, last, config.checkpoints)})


def explorer(config: CollectConfig) -> PPO:
    """The learner whose agent explores, untrained: `rnd`, blind to missions."""
    names = ("env", "steps", "seed", "backend", "network", "view", "int_coef", "ppo", "hardware")
    settings = curiosity.RNDSettings("rnd", mission="off", **{name: vars(config)[name] for name in names})
    return curiosity.explorer(settings, config.ext_coef, config.int_gamma)


def _record(
    agents: Mapping[int, Agent],
    seeds: Mapping[int, int],
    envs: BaseVectorEnv,
    count: int,
    writer: DatasetWriter,
    describe: Callable[[NDArray[np.uint8]], list[str]],
    update: Callable[[float], None],
) -> list[float]:
    """Let each agent, by the steps that it was trained for, play `count` episodes, seeded from `seeds` on.

    Returns:
        The return of each episode.
    """
    returns: list[float] = []
    for number, (point, agent) in enumerate(agents.items()):

        def tick(ended: int, done: int = number * count) -> None:
            update(done + ended)

        played = record(agent, envs, count, writer, describe, seed=seeds[point], trained=point, tick=tick)
        returns += [episode.episode_return for episode in played]
    return returns


def _keep(agent: Agent, policies: Path, step: int) -> None:
    agent.save(policies, _name(step))


def _files(step: int) -> list[str]:
    """The files of the policy kept at a step."""
    return [f"policies/{_name(step)}.{ending}" for ending in ("safetensors", "json")]


def _name(step: int) -> str:
    return f"step-{step:012d}"
