"""collect: experience of an exploring agent, annotated with text.

PPO is paid for novelty (RND), and for the world's reward only if `--ext-coef` says so. At regular points of training
the policy is kept; when training is over each kept policy plays whole episodes, sampling its actions, and those are
the dataset. So the dataset is a function of the kept policies alone, and a run that is killed while it records simply
records again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.agents import load_agent
from bkrl.agents.build import new_agent, observation_options
from bkrl.agents.play import MOST_AT_ONCE, play
from bkrl.agents.protocol import Agent
from bkrl.core.config import CollectConfig
from bkrl.core.errors import UsageError
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.writer import DatasetWriter
from bkrl.envs import captioner, make_vec, missions_vary, world
from bkrl.envs.vector import WorldVectorEnv
from bkrl.learn.hardware import choose
from bkrl.learn.loop import finished, train
from bkrl.learn.ppo import PPO
from bkrl.rewards.rnd import RND
from bkrl.rewards.streams import EnvReward, RewardStream
from bkrl.runs.record import Run
from bkrl.runs.tracking import check_tracker, tracked
from bkrl.stages import UNSEEN, to_do


@announced
def run(config: CollectConfig, reporter: Reporter) -> Run:
    """Train the explorer, then record.

    Raises:
        UsageError: both reward weights are 0, or settings that cannot work.
        Diverged: a loss, or the network after an update, is not finite; the last good checkpoint is kept.
    """
    facts = world(config.env)
    if config.ext_coef == 0 and config.int_coef == 0:
        raise UsageError("With --ext-coef 0 and --int-coef 0 the explorer is paid for nothing; raise one of them.")
    describe = captioner(config.env, config.language)
    check_tracker(config.track)
    learner = None
    if to_do(config):
        torch.set_num_threads(config.threads)
        learner = explorer(config)
    result = Run.create(config.run_dir, stage="collect", config=config, fresh=config.fresh)
    if learner is None or result.complete:
        reporter.say(f"{result.path} is already complete.")
        return result
    points, policies = recording_points(config), result.file("policies")
    _say_what_is_recorded(config, points, reporter)
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
    writer = DatasetWriter(
        result,
        env_id=facts.env_id,
        obs_shape=facts.obs_shape,
        action_names=facts.action_names,
        info={"family": facts.family, "rules": facts.rules, "language": config.language},
    )
    options, view = observation_options(facts, config.network, config.view)
    count = config.episodes_per_checkpoint
    envs = make_vec(config.env, min(count, MOST_AT_ONCE), backend=config.backend, **options)
    seeds = {point: derive_seed(config.seed, "record", number) for number, point in enumerate(points)}
    with reporter.progress("record", len(points) * count, "episodes") as update:
        returns, successes, lengths = _record(policies, seeds, envs, count, writer, describe, update)
    envs.close()
    writer.close()
    result.finish(
        [*writer.outputs, *(name for point in points for name in _files(point))],
        env_id=facts.env_id,
        view=view,
        steps=learner.step,
        recorded_episodes=writer.num_episodes,
        recorded_steps=int(sum(lengths)),
        mean_return=float(np.mean(returns)),
        success_rate=float(np.mean(successes)),
        checkpoints=points,
        reward_free=config.ext_coef == 0,
    )
    finished(result)
    return result


def _say_what_is_recorded(config: CollectConfig, points: list[int], reporter: Reporter) -> None:
    """Warn where the dataset will be another one than the settings promise."""
    if len(points) < config.checkpoints:
        reporter.warn(
            f"{config.steps:,} steps are too few for {config.checkpoints} recording points "
            f"{config.ppo.num_envs * config.ppo.num_steps:,} steps apart; recording at {len(points)}."
        )
    if missions_vary(config.env) and config.ext_coef > 0:
        reporter.warn(UNSEEN.format(env=config.env, who="the explorer"))
    elif missions_vary(config.env):
        reporter.say(
            f"The missions of {config.env} change between episodes. The explorer does not see them, which does no harm "
            "while it is paid for novelty alone; a policy that learns this world itself would not see them either."
        )


def recording_points(config: CollectConfig) -> list[int]:
    """The steps at which the policy is kept: from 0 to the end, evenly, at ends of rollouts; one is at the end."""
    size = config.ppo.num_envs * config.ppo.num_steps
    last = -(-config.steps // size)
    if config.checkpoints == 1:
        return [last * size]
    return sorted({round(rollout) * size for rollout in np.linspace(0, last, config.checkpoints)})


def explorer(config: CollectConfig) -> PPO:
    """The learner whose agent explores, untrained.

    Raises:
        UsageError: settings that cannot work.
    """
    facts = world(config.env)
    options, view = observation_options(facts, config.network, config.view)
    envs = make_vec(config.env, config.ppo.num_envs, backend=config.backend, **options)
    hardware = choose(config.hardware, config.network)
    streams: list[RewardStream] = []
    if config.ext_coef > 0:
        streams.append(EnvReward(gamma=config.ppo.gamma, coef=config.ext_coef))
    if config.int_coef > 0:
        streams.append(
            RND(
                facts.obs_shape,
                config.ppo.num_envs,
                gamma=config.int_gamma,
                coef=config.int_coef,
                seed=derive_seed(config.seed, "rnd"),
                device=hardware.device,
            )
        )
    agent = new_agent(config.network, envs, view, len(streams), derive_seed(config.seed, "weights"))
    return PPO(envs, agent, streams, config.ppo, total_steps=config.steps, seed=config.seed, hardware=hardware)


def _record(
    policies: Path,
    seeds: Mapping[int, int],
    envs: WorldVectorEnv,
    count: int,
    writer: DatasetWriter,
    describe: Callable[[NDArray[np.uint8]], list[str]],
    update: Callable[[float], None],
) -> tuple[list[float], list[bool], list[int]]:
    """Let each kept policy play `count` episodes, seeded from `seeds` on by the step at which it was kept.

    Returns:
        The return, success and length of each episode.
    """
    returns, successes, lengths = [], [], []
    for number, (point, seed) in enumerate(seeds.items()):
        agent, done = load_agent(policies, _name(point)), number * count
        episodes = play(agent, envs, count, seed=seed, keep=True, tick=lambda ended, done=done: update(done + ended))  # type: ignore[misc]
        for episode in episodes:
            writer.add_episode(
                episode.observations,
                episode.actions,
                episode.rewards,
                describe(episode.observations),
                mission=episode.mission,
                terminated=episode.terminated,
                truncated=episode.truncated,
                success=episode.success,
                seed=episode.seed,
                checkpoint_step=point,
            )
            returns.append(episode.episode_return)
            successes.append(episode.success)
            lengths.append(episode.length)
    return returns, successes, lengths


def _keep(agent: Agent, policies: Path, step: int) -> None:
    agent.save(policies, _name(step))


def _files(step: int) -> list[str]:
    """The files of the policy kept at a step."""
    return [f"policies/{_name(step)}.{ending}" for ending in ("safetensors", "json")]


def _name(step: int) -> str:
    return f"step-{step:012d}"
