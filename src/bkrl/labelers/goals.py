"""BK-Goal: what would be worth doing from here?

Each query is independent of the others (the published tool asked inside one running conversation), so that queries
can be asked side by side, kept and repeated one by one. The library holds every distinct goal once, in the form it
first had.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bkrl.dataset import Dataset, Segment
from bkrl.labelers.answers import GOALS_SCHEMA, Unparsed, parse_goals
from bkrl.labelers.asking import Asked, Responses, Sampling, ask_parsed, turns
from bkrl.labelers.material import SegmentText, WorldCard, draw_segments, segment_text
from bkrl.llm.ask import Asker
from bkrl.llm.protocol import Request
from bkrl.prompts import render
from bkrl.rng import generator

TEMPLATES = ("goal", "repair")
WANTED = 'Reply with one JSON object only: {"goals": ["first goal", "second goal"]}.'


def draw_queries(dataset: Dataset, count: int, length: int, seed: int) -> list[Segment]:
    """The segments whose ends are asked about."""
    return draw_segments(dataset, count, length, generator(seed, "label", "goals"))


def goal_prompt(world: WorldCard, segment: SegmentText) -> list[tuple[str, str]]:
    """The turns of a query: the world first (the same in every request), the segment last."""
    return render("goal", world=world, segment=segment)


def request(dataset: Dataset, world: WorldCard, segment: Segment, sampling: Sampling, sample: int = 0) -> Request:
    """The request for one query."""
    return Request(
        turns(goal_prompt(world, segment_text(dataset, segment))),
        schema=GOALS_SCHEMA,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        reasoning_effort=sampling.effort,
        sample=sample,
    )


def ask_goals(
    asker: Asker, dataset: Dataset, world: WorldCard, queries: list[Segment], votes: int, sampling: Sampling
) -> list[list[Asked[list[str]]]]:
    """For each query its `votes` answers."""

    async def ask(segment: Segment, sample: int) -> Asked[list[str]]:
        return await ask_parsed(asker, request(dataset, world, segment, sampling, sample), parse_goals, WANTED)

    jobs: list[Callable[[], Awaitable[Asked[list[str]]]]] = [
        partial(ask, segment, sample) for segment in queries for sample in range(votes)
    ]
    answers = asker.run(jobs, "label goals")
    return [answers[start : start + votes] for start in range(0, len(answers), votes)]


def rows(
    dataset: Dataset, queries: list[Segment], answers: list[list[Asked[list[str]]]], responses: Responses
) -> list[dict[str, Any]]:
    """The rows of goals.parquet: one for each goal of each query, or one without a goal where there was no answer."""
    library: dict[str, int] = {}
    forms: list[str] = []
    table: list[dict[str, Any]] = []
    for number, (segment, votes) in enumerate(zip(queries, answers, strict=True)):
        caption = segment_text(dataset, segment).captions[-1]
        seen: set[int] = set()
        for asked in votes:
            ids = responses.add(asked.exchanges)
            common = {
                "query_id": number,
                "episode_id": segment.episode_id,
                "start": segment.start,
                "length": segment.length,
                "caption": caption,
                "status": asked.status,
                "request_id": ids[-1],
            }
            if isinstance(asked.value, Unparsed):
                table.append({**common, "goal": None, "goal_id": None})
                continue
            for goal in asked.value:
                goal_id = library.setdefault(_sameness(goal), len(library))
                if goal_id == len(forms):
                    forms.append(goal)
                if goal_id not in seen:
                    seen.add(goal_id)
                    table.append({**common, "goal": forms[goal_id], "goal_id": goal_id})
    return table


def _sameness(goal: str) -> str:
    """Goals that differ only in articles, hyphens or a plural-free spelling count as one."""
    words = re.sub(r"[-,']", " ", goal).split()
    return " ".join(word for word in words if word not in ("a", "an", "the", "some"))
