"""What a label run asks, in values (`Plan`), and what a kind of label is (`Variant`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from bkrl.core.errors import InputError
from bkrl.data.dataset import Dataset
from bkrl.labelers.asking import Sampling
from bkrl.labelers.config import LabelConfig
from bkrl.labelers.material import EnvCard, env_card
from bkrl.labelers.tables import names_of
from bkrl.llm.choose import MAX_TOKENS
from bkrl.llm.protocol import Request
from bkrl.llm.session import AskSession
from bkrl.text.mission_words import MissionWords
from bkrl.text.prompts import open_prompts

NUM = {"pref": 5000, "goal": 500, "code": 5}
CLOSED_GOALS = 100
"""Moments that closed questions ask about: each is asked about every goal."""
LENGTH = {"pref": 5, "goal": 3, "code": 5}
"""Actions in a segment; code: past actions that a program sees."""


@dataclass(frozen=True)
class Plan:
    """What is asked about a dataset, of any annotator.

    num: pairs, queries, or rounds of a conversation; length: actions in a segment.
    """

    variant: Literal["code", "pref", "goal"]
    dataset: Dataset
    card: EnvCard
    num: int
    length: int
    swap: Literal["none", "both"]
    votes: int
    sampling: Sampling
    seed: int
    closed: bool = False
    compare: Literal["pairs", "points"] = "pairs"
    rate: Literal["alone", "need"] = "alone"
    criteria: tuple[str, ...] = ("overall",)
    calibrate: Literal["none", "rules"] = "none"

    @classmethod
    def of(cls, config: LabelConfig, dataset: Dataset) -> Plan:
        """The plan of a label run's settings. Raises InputError for prompts that do not fit."""
        tokens = min(config.max_tokens, MAX_TOKENS) if config.closed else config.max_tokens
        return cls(
            config.variant,
            dataset,
            env_card(
                dataset.env_id,
                open_prompts(config.prompt, config.rename),
                _words(dataset) if config.with_mission else None,
                _memory(dataset) if config.with_memory else (),
            ),
            num=config.num or (CLOSED_GOALS if config.closed and config.variant == "goal" else NUM[config.variant]),
            length=config.length or LENGTH[config.variant],
            swap=config.swap,
            votes=config.votes,
            sampling=Sampling(config.temperature, tokens, None if config.effort == "default" else config.effort),
            seed=config.seed,
            closed=config.closed,
            compare=config.compare,
            rate=config.rate,
            criteria=tuple(filter(None, (one.strip() for one in config.criteria.split(",")))),
            calibrate=config.calibrate,
        )


def _words(dataset: Dataset) -> MissionWords:
    """The words of a dataset's missions. InputError where it records none."""
    if not any(dataset.missions):
        raise InputError(f"{dataset.path} records no missions, for its env has none; leave --with-mission out.")
    return MissionWords.of(dataset.text("mission")[1])


def _memory(dataset: Dataset) -> tuple[str, ...]:
    """The fields of the memory of a dataset's episodes. InputError where nothing is remembered."""
    names = names_of(dataset.env_id)
    if not names:
        raise InputError(
            f"Nothing is remembered of episodes in {dataset.env_id}, so nothing can read it; leave --with-memory out."
        )
    return names


@dataclass(frozen=True)
class LabelResult:
    """A labelling: the rows of its table and of responses.parquet (None for a control), figures of quality, whether
    potentials can be fitted to it; `more`: further tables by file name.
    """

    table: list[dict[str, Any]]
    responses: list[dict[str, Any]] | None
    quality: dict[str, Any]
    usable: bool
    more: dict[str, pa.Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """A kind of label.

    templates: those that it is worded by, besides the env's; reply_tokens: of a typical reply without reasoning.
    """

    templates: tuple[str, ...]
    reply_tokens: int
    requests: Callable[[Plan], list[Request]]
    """What would be asked, follow-ups left out; where each request builds on the reply before, as many as there can be.
    """
    label: Callable[[Plan, AskSession], LabelResult]
    """Ask everything and make the tables."""
    try_prompts: Callable[[EnvCard], object]
    """Fill in once every template that may be needed. InputError when a template of the user cannot be."""
    most_questions: Callable[[Plan], int] = lambda plan: plan.num * plan.votes * (2 if plan.swap == "both" else 1)
    """At most so many are asked, follow-ups left out."""

    def files(self, card: EnvCard) -> list[str]:
        """The names of the templates that a labelling is worded by; a layout's only where it is one's own."""
        layout, own = f"layout_{card.family}", card.prompts.own(f"layout_{card.family}.md")
        return [*self.templates, f"world_{card.family}"] + [layout] * ("code" in self.templates and own is not None)
