"""BK-Goal: what would be worth doing from here?

Each query is independent of the others (the published tool asked inside one running conversation), so that queries
can be asked side by side, kept and repeated one by one. The library holds every distinct goal once, in the form it
first had, and for each suggestion the reply it stood in and the words it had there.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.schema import LIBRARY
from bkrl.envs.babyai.constants import COLOR_NAMES
from bkrl.labelers.answers import GOALS_SCHEMA, Unparsed, parse_goals
from bkrl.labelers.asking import Asked, Responses, Sampling, ask_parsed, turns
from bkrl.labelers.material import A_SEGMENT, EnvCard, SegmentText, draw_segments, segment_text
from bkrl.labelers.plan import LabelResult, Plan, Variant
from bkrl.labelers.quality import of_goals
from bkrl.llm.protocol import Request
from bkrl.llm.session import AskSession

WANTED = 'Reply with one JSON object only: {"goals": ["first goal", "second goal"]}.'


def draw_queries(dataset: Dataset, count: int, length: int, seed: int) -> list[Segment]:
    """The segments whose ends are asked about."""
    return draw_segments(dataset, count, length, generator(seed, "label", "goals"))


def goal_prompt(card: EnvCard, segment: SegmentText) -> list[tuple[str, str]]:
    """The turns of a query: the env first (the same in every request), the segment last."""
    return card.prompts.render("goal", world=card, segment=segment)


def request(dataset: Dataset, card: EnvCard, segment: Segment, sampling: Sampling, sample: int = 0) -> Request:
    """The request for one query."""
    return sampling.request(turns(goal_prompt(card, segment_text(dataset, segment, card))), GOALS_SCHEMA, sample)


def ask_goals(
    session: AskSession, dataset: Dataset, card: EnvCard, queries: Sequence[Segment], votes: int, sampling: Sampling
) -> list[list[Asked[list[str]]]]:
    """For each query its `votes` answers."""

    async def ask(segment: Segment, sample: int) -> Asked[list[str]]:
        wanted = request(dataset, card, segment, sampling, sample)
        return await ask_parsed(session, wanted, parse_goals, WANTED, card.prompts)

    jobs: list[Callable[[], Awaitable[Asked[list[str]]]]] = [
        partial(ask, segment, sample) for segment in queries for sample in range(votes)
    ]
    answers = session.run(jobs, "label goals")
    return [answers[start : start + votes] for start in range(0, len(answers), votes)]


def rows(
    dataset: Dataset, queries: Sequence[Segment], answers: list[list[Asked[list[str]]]], responses: Responses
) -> list[dict[str, Any]]:
    """The rows of goals.parquet: one for each goal of each query, or one without a goal where there was no answer."""
    known: dict[str, int] = {}
    forms: list[str] = []
    table: list[dict[str, Any]] = []
    for number, (segment, votes) in enumerate(zip(queries, answers, strict=True)):
        caption = segment_text(dataset, segment).captions[-1]
        suggested: dict[int, dict[str, Any]] = {}
        for asked in votes:
            ids = responses.add(asked.exchanges)
            common = {
                "query_id": number,
                **segment._asdict(),
                "caption": caption,
                "status": asked.status,
                "request_id": ids[-1],
            }
            if isinstance(asked.value, Unparsed):
                table.append({**common, "goal": None, "goal_id": None, "said": [], "request_ids": ids[-1:]})
                continue
            for goal in asked.value:
                goal_id = known.setdefault(normal_form(goal), len(known))
                if goal_id == len(forms):
                    forms.append(goal)
                if goal_id not in suggested:
                    row = {**common, "goal": forms[goal_id], "goal_id": goal_id, "said": [], "request_ids": []}
                    table.append(suggested.setdefault(goal_id, row))
                suggested[goal_id]["said"].append(goal)
                suggested[goal_id]["request_ids"].append(ids[-1])
    return table


def library(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of library.parquet, the distinct goals of goals.parquet in the order they first came up: how each is
    written, every wording with how often it was used, and where it came from.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in table:
        if row["goal"] is not None:
            found.setdefault(row["goal_id"], []).append(row)
    entries = []
    for goal_id, rows_ in sorted(found.items()):
        wordings = dict(Counter(words for row in rows_ for words in row["said"]).most_common())
        entries.append(
            {
                "goal_id": goal_id,
                "goal": rows_[0]["goal"],
                "wordings": list(wordings),
                "wording_counts": list(wordings.values()),
                "query_ids": list(dict.fromkeys(row["query_id"] for row in rows_)),
                "request_ids": list(dict.fromkeys(request_id for row in rows_ for request_id in row["request_ids"])),
            }
        )
    return entries


def normal_form(goal: str) -> str:
    """What two goals have in common that say the same: no case, punctuation, spaces, articles or plurals.

    "Go to the red balls" and "go to a red ball" are one goal, and so are "pick-axe" and "pickaxe". Words are never
    reordered or replaced by others: "go to the key" and "fetch the key" stay two.
    """
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", goal).casefold())
    return "".join(_singular(word) for word in words if word not in _ARTICLES)


def plain_form(goal: str) -> str:
    """A goal's normal form, whatever colour, state and use its thing has."""
    return normal_form(" ".join(word for word in goal.lower().split() if word not in _QUALITIES))


_ARTICLES = frozenset(("a", "an", "the", "some", "any"))
_QUALITIES = frozenset((*COLOR_NAMES, "locked", "closed", "ripe", "crafting"))


def _singular(word: str) -> str:
    """A noun without its plural s; anything else is cut alike on both sides of a comparison, which does no harm."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("xes", "shes", "ches", "sses")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _requests(plan: Plan) -> list[Request]:
    return [
        request(plan.dataset, plan.card, query, plan.sampling, sample)
        for query in draw_queries(plan.dataset, plan.num, plan.length, plan.seed)
        for sample in range(plan.votes)
    ]


def _label(plan: Plan, session: AskSession) -> LabelResult:
    queries = draw_queries(plan.dataset, plan.num, plan.length, plan.seed)
    answers = ask_goals(session, plan.dataset, plan.card, queries, plan.votes, plan.sampling)
    responses = Responses()
    table = rows(plan.dataset, queries, answers, responses)
    entries = pa.Table.from_pylist(library(table), schema=LIBRARY)
    facts = of_goals(table, responses.rows)
    usable = any(row["goal"] is not None for row in table)
    return LabelResult(table, responses.rows, facts, usable, {"library.parquet": entries})


GOAL = Variant(("goal", "repair"), 60, _requests, _label, lambda card: goal_prompt(card, A_SEGMENT))
