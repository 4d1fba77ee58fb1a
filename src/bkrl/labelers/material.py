"""What labelers show and ask: the env's card, segments as text, and how segments are drawn from a dataset."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bkrl import envs
from bkrl.core.errors import InputError
from bkrl.data.dataset import Dataset, Segment
from bkrl.text import prompts
from bkrl.text.mission_words import MissionWords
from bkrl.text.prompts import SHIPPED, PromptTemplates


@dataclass(frozen=True)
class EnvCard:
    """What a prompt may know about an env. `family` names its description (`world_FAMILY.md`); never a task.

    `prompts` are those that it stands in. `mission_words`: of the dataset's missions, where prompts show them.
    `memory`: the fields of the memory of episodes, where potentials may read it.
    """

    env_id: str
    family: str
    action_names: tuple[str, ...]
    prompts: PromptTemplates = SHIPPED
    mission_words: MissionWords | None = None
    memory: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """What potentials made from labels of this env see beside observations and actions."""
        return (*(() if self.mission_words is None else ("mission",)), *(("memory",) if self.memory else ()))


def env_card(
    env_id: str, own: PromptTemplates = SHIPPED, words: MissionWords | None = None, memory: tuple[str, ...] = ()
) -> EnvCard:
    """The card of an env; a family without a description of its own is "other". `own`: prompts in place of ours."""
    card = envs.env_spec(env_id)
    family = card.family if f"world_{card.family}" in prompts.names() else "other"
    return EnvCard(env_id, family, card.action_names, own, words, memory)


@dataclass(frozen=True)
class SegmentText:
    """n + 1 captions and n action names, in order: a segment as it stands in a prompt, with its mission or "".

    `done`: where the memory of episodes is shown, what was done by the segment's start and what by its end.
    """

    captions: tuple[str, ...]
    actions: tuple[str, ...]
    mission: str = ""
    done: tuple[str, ...] = ()


A_SEGMENT = SegmentText(("A caption.", "A caption."), ("act",))
"""For trying a template."""


def layout_text(card: EnvCard) -> str:
    """What the integers of an observation mean, in words."""
    piece = f"layout_{card.family}"
    if piece in prompts.names():
        return card.prompts.piece(piece, layout=envs.family(card.family).layout)
    return "observations[b, i] is the world's observation as it is."


def segment_text(dataset: Dataset, segment: Segment, card: EnvCard | None = None) -> SegmentText:
    """The captions and actions of a segment, and its mission and what was done, where the prompts of `card` show them.

    InputError when the dataset has no such steps.
    """
    return rows_text(dataset, dataset.rows(segment), card)


def rows_text(dataset: Dataset, rows: NDArray[np.int64], card: EnvCard | None = None) -> SegmentText:
    """The same of consecutive rows of one episode."""
    captions = tuple(dataset.caption(int(row)) for row in rows)
    actions = tuple(prompts.name(dataset.action_names[action]) for action in dataset.actions[rows[:-1]])
    if card is None:
        return SegmentText(captions, actions)
    mission = dataset.row_missions[rows[-1]] if card.mission_words is not None else ""
    memory = dataset.memory if card.memory else None
    done = () if memory is None else tuple(_counts(card.memory, memory[row]) for row in (rows[0], rows[-1]))
    return SegmentText(captions, actions, mission, done)


def _counts(names: tuple[str, ...], fields: NDArray[np.uint8]) -> str:
    """The fields of a memory that are not 0, in words: "cells_visited 12, keys_picked_up 1"."""
    told = [f"{name} {count}" for name, count in zip(names, fields.tolist(), strict=True) if count]
    return ", ".join(told) or "nothing"


def draw_segments(dataset: Dataset, count: int, length: int, rng: np.random.Generator) -> list[Segment]:
    """`count` segments of `length` actions, spread evenly over checkpoints and, inside them, over episodes.

    Every checkpoint gives the same number (give or take one), every episode of a checkpoint too; starts are uniform
    inside the episode. The order is random, another with each `count`. InputError when no episode is long enough.
    """
    long_enough = np.flatnonzero(dataset.lengths >= length)
    if len(long_enough) == 0:
        raise InputError(
            f"No episode of {dataset.path} has {length} steps (the longest: {dataset.lengths.max()}); pass a smaller "
            "--length."
        )
    steps = dataset.checkpoint_step[long_enough]
    groups = [rng.permutation(long_enough[steps == step]) for step in np.unique(steps)]
    first = int(rng.integers(len(groups)))
    segments = []
    for number in range(count):
        turn, group = divmod(number + first, len(groups))
        episode = int(groups[group][turn % len(groups[group])])
        start = int(rng.integers(dataset.lengths[episode] - length + 1))
        segments.append(Segment(episode, start, length))
    return [segments[index] for index in rng.permutation(count)]


def return_to_go(dataset: Dataset, segment: Segment, gamma: float = 0.99) -> float:
    """Discounted sum of the env's rewards from the segment's first action to the end of its episode."""
    first = dataset.first_row[segment.episode_id]
    rewards = dataset.rewards[first + segment.start : first + dataset.lengths[segment.episode_id]]
    return float(rewards @ gamma ** np.arange(len(rewards)))
