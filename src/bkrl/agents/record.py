"""Whole episodes of an agent, written into a dataset."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.play import Episode, play
from bkrl.agents.protocol import Agent
from bkrl.data.schema import LABEL
from bkrl.data.writer import DatasetWriter
from bkrl.envs import EnvSpec
from bkrl.envs.vector import BaseVectorEnv
from bkrl.runs.record import Run


def record(
    agent: Agent,
    envs: BaseVectorEnv,
    count: int,
    writer: DatasetWriter,
    describe: Callable[[NDArray[np.uint8]], list[str]],
    *,
    seed: int,
    trained: int,
    labelled: bool = False,
    tick: Callable[[int], None] | None = None,
) -> list[Episode]:
    """Let an agent play `count` episodes, seeded from `seed` on, and write them; the episodes.

    Args:
        agent, envs, seed, tick: see `play`.
        count: episodes.
        writer: takes them.
        describe: captions of observations.
        trained: env steps that the agent has been trained for.
        labelled: write beside each action the one that the agent's bot would have taken.
    """
    episodes = []
    for episode in play(agent, envs, count, seed=seed, keep=True, tick=tick):
        names = [agent.action_names[label] for label in episode.labels.tolist()]
        writer.add_episode(
            episode.observations,
            episode.actions,
            episode.rewards,
            describe(episode.observations),
            mission=episode.missions,
            terminated=episode.terminated,
            truncated=episode.truncated,
            success=episode.success,
            seed=episode.seed,
            checkpoint_step=trained,
            texts={LABEL: [*names, ""]} if labelled else {},
            episode_texts={"task_kind": episode.task_kind} if episode.task_kind else {},
        )
        episodes.append(episode)
    return episodes


def open_writer(
    run: Run, facts: EnvSpec, envs: BaseVectorEnv, language: str | None, *, played_by: str, labelled: bool = False
) -> DatasetWriter:
    """The writer of a run's episodes in these envs, captioned in a language; resets them.

    Beside the usual it takes, of each episode, the kind of task, where the env says it.
    """
    _, infos = envs.reset(seed=0)
    return DatasetWriter(
        run,
        env_id=facts.env_id,
        obs_shape=facts.obs_shape,
        action_names=facts.action_names,
        info={"family": facts.family, "rules": facts.rules, "language": language},
        texts=(LABEL,) if labelled else (),
        episode_texts=("task_kind",) if "task_kind" in infos else (),
        played_by=played_by,
    )
