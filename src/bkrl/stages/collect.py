"""collect: experience of an exploring agent, annotated with text.

PPO is paid for novelty (RND), and for the world's reward only if `--ext-coef` says so. At regular points of training
the policy is kept; when training is over each kept policy plays whole episodes, sampling its actions, and those are
the dataset. So the dataset is a function of the kept policies alone, and a run that is killed while it records simply
records again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bkrl.agents import load_agent
from bkrl.agents.build import new_agent, observation_options
from bkrl.agents.play import MOST_AT_ONCE, play
from bkrl.core.config import CollectConfig
from bkrl.core.errors import UsageError
from bkrl.core.jit import announced
from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.writer import DatasetWriter
from bkrl.envs import World, captioner, make_vec, missions_vary, world
from bkrl.learn.hardware import choose
from bkrl.learn.loop import finished, train
from bkrl.learn.ppo import PPO
from bkrl.learn.protocol import Learner
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
    made = None
    if to_do(config):
        torch.set_num_threads(config.threads)
        made = explorer(config)
    result = Run.create(config.run_dir, stage="collect", config=config, fresh=config.fresh)
    if made is None or result.complete:
        reporter.say(f"{result.path} is already complete.")
        return result
    points = recording_points(config)
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
    with tracked(config.track, result, reporter):
        steps = _explore(config, made, points, result, reporter)
    return _record(config, facts, describe, points, steps, result, reporter)


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


def _explore(config: CollectConfig, learner: Learner, points: list[int], result: Run, reporter: Reporter) -> int:
    """Train, keeping a policy at each of `points`; the steps taken."""
    result.file("policies").mkdir(exist_ok=True)

    def keep(number: int, step: int) -> None:
        del number
        learner.agent.save(result.file("policies"), _name(step))

    train(
        learner,
        result,
        reporter,
        title=f"explore {config.env}",
        checkpoint_every=max(config.steps // 10, 1),
        milestones=points,
        at_milestone=keep,
        kept=lambda number: _files(points[number]),
    )
    learner.close()
    return learner.step


def _record(
    config: CollectConfig, facts: World, describe: Any, points: list[int], steps: int, result: Run, reporter: Reporter
) -> Run:
    """Let each kept policy play, and write what it saw and did."""
    writer = DatasetWriter(
        result,
        env_id=config.env,
        obs_shape=facts.obs_shape,
        action_names=facts.action_names,
        info={"family": facts.family, "rules": facts.rules, "language": config.language},
    )
    options, view = observation_options(facts, config.network, config.view)
    count = config.episodes_per_checkpoint
    envs = make_vec(config.env, min(count, MOST_AT_ONCE), backend=config.backend, **options)
    outputs: list[str] = []
    returns, successes, lengths = [], [], []
    with reporter.progress("record", len(points) * count, "episodes") as update:
        for number, point in enumerate(points):
            agent = load_agent(result.file("policies"), _name(point))
            outputs += _files(point)
            done = number * count
            seed = derive_seed(config.seed, "record", number)
            for episode in play(
                agent,
                envs,
                count,
                seed=seed,
                keep=True,
                tick=lambda ended, done=done: update(done + ended),  # type: ignore[misc]
            ):
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
    envs.close()
    writer.close()
    result.finish(
        [*writer.outputs, *outputs],
        env_id=config.env,
        view=view,
        steps=steps,
        recorded_episodes=writer.num_episodes,
        recorded_steps=int(sum(lengths)),
        mean_return=float(np.mean(returns)),
        success_rate=float(np.mean(successes)),
        checkpoints=points,
        reward_free=config.ext_coef == 0,
    )
    finished(result)
    return result


def _files(step: int) -> list[str]:
    """The files of the policy kept at a step."""
    return [f"policies/{_name(step)}.{ending}" for ending in ("safetensors", "json")]


def _name(step: int) -> str:
    return f"step-{step:012d}"
