"""BK-Pref: which of two segments is better?

Pairs are drawn evenly over checkpoints and episodes. Segments that read the same are ties without asking. With
`swap="both"` each pair is asked in both orders, with `votes` several times; the label is the mean vote for A.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset, Segment
from bkrl.data.partition import partition
from bkrl.labelers.answers import CHOICE_SCHEMA, Choice, Unparsed, parse_choice
from bkrl.labelers.asking import Asked, Responses, Sampling, ask_parsed, turns
from bkrl.labelers.material import A_SEGMENT, EnvCard, SegmentText, draw_segments, segment_text
from bkrl.labelers.plan import LabelResult, Plan, Variant
from bkrl.labelers.quality import SWAPPED, of_pairs
from bkrl.llm.protocol import Request
from bkrl.llm.session import AskSession

WANTED = 'Reply with one JSON object only: {"thoughts": "...", "choice": "A"}, where choice is "A", "B" or "tie".'


@dataclass(frozen=True)
class Pair:
    """Two segments to compare."""

    a: Segment
    b: Segment


@dataclass(frozen=True)
class Question:
    """One request to be sent: a pair, in one order, for the n-th time."""

    pair: int
    swapped: bool
    sample: int


def draw_pairs(dataset: Dataset, count: int, length: int, seed: int) -> list[Pair]:
    """`count` pairs of segments of `length` actions, drawn evenly over checkpoints and episodes (`draw_segments`).

    Both episodes of a pair are in the same part of the dataset (`bkrl.data.partition`), so that train-rm can use all.
    A larger `count` draws the segments of a smaller one and more, in other pairs.
    """
    rng = generator(seed, "label", "pairs")
    segments = draw_segments(dataset, 2 * count, length, rng)
    parts = partition(np.array([segment.episode_id for segment in segments], np.int64)).tolist()
    pairs: list[Pair] = []
    single: dict[int, Segment] = {}
    for segment, part in zip(segments, parts, strict=True):
        if part in single:
            pairs.append(Pair(single.pop(part), segment))
        else:
            single[part] = segment
    if single:  # two of the three parts hold an odd number: the larger one gives one segment more, the other one less
        part = min(single)
        episode = int(rng.choice([s.episode_id for s, p in zip(segments, parts, strict=True) if p == part]))
        start = int(rng.integers(dataset.lengths[episode] - length + 1))
        pairs.append(Pair(single[part], Segment(episode, start, length)))
    return pairs


def questions_of(
    dataset: Dataset, pairs: list[Pair], swap: Literal["none", "both"], votes: int, card: EnvCard | None = None
) -> list[Question]:
    """The questions that have to be asked, in a fixed order; pairs that read the same need none."""
    orders = (False, True) if swap == "both" else (False,)
    return [
        Question(number, swapped, sample)
        for number, pair in enumerate(pairs)
        if segment_text(dataset, pair.a, card) != segment_text(dataset, pair.b, card)
        for swapped in orders
        for sample in range(votes)
    ]


def request(dataset: Dataset, card: EnvCard, pair: Pair, question: Question, sampling: Sampling) -> Request:
    """The request for one question."""
    first, second = (segment_text(dataset, one, card) for one in (pair.a, pair.b))
    if question.swapped:
        first, second = second, first
    return sampling.request(turns(pair_prompt(card, first, second)), CHOICE_SCHEMA, question.sample)


def pair_prompt(card: EnvCard, a: SegmentText, b: SegmentText) -> list[tuple[str, str]]:
    """The turns of a comparison: the env first (the same in every request), the pair last."""
    return card.prompts.render("pref", world=card, a=a, b=b)


def ask_pairs(
    session: AskSession,
    dataset: Dataset,
    card: EnvCard,
    pairs: list[Pair],
    questions: list[Question],
    sampling: Sampling,
) -> list[Asked[Choice]]:
    """Ask every question; answers are given back in terms of the pair's own A and B."""

    async def ask(question: Question) -> Asked[Choice]:
        wanted = request(dataset, card, pairs[question.pair], question, sampling)
        asked: Asked[Choice] = await ask_parsed(session, wanted, parse_choice, WANTED, card.prompts)
        if question.swapped and not isinstance(asked.value, Unparsed):
            return replace(asked, value=SWAPPED[asked.value])
        return asked

    jobs: list[Callable[[], Awaitable[Asked[Choice]]]] = [partial(ask, question) for question in questions]
    return session.run(jobs, "label pairs")


def rows(
    pairs: list[Pair], questions: list[Question], answers: list[Asked[Choice]], responses: Responses
) -> list[dict[str, Any]]:
    """The rows of preferences.parquet; `responses` receives every exchange in the order of the questions."""
    asked: list[list[tuple[Asked[Choice], list[int]]]] = [[] for _ in pairs]
    for question, answer in zip(questions, answers, strict=True):
        asked[question.pair].append((answer, responses.add(answer.exchanges)))
    return [_row(number, pair, asked[number]) for number, pair in enumerate(pairs)]


def _row(number: int, pair: Pair, asked: list[tuple[Asked[Choice], list[int]]]) -> dict[str, Any]:
    values = [answer.value for answer, _ in asked]
    a, b, ties = (sum(value == name for value in values) for name in ("A", "B", "tie"))
    valid = a + b + ties
    if not asked:
        label, status = 0.5, "identical"
    elif valid:
        label, status = (a + 0.5 * ties) / valid, "labelled"
    else:
        label, status = None, asked[-1][0].status
    ids = [request_id for _, request_ids in asked for request_id in request_ids]
    return row_of(number, pair, label, status, (a, b, ties, len(asked) - valid), ids)


def row_of(
    number: int, pair: Pair, label: float | None, status: str, votes: tuple[int, int, int, int], ids: Sequence[int] = ()
) -> dict[str, Any]:
    """A row of preferences.parquet. `votes`: for A, for B, ties, answers that could not be used."""
    return {
        "pair_id": number,
        "a_episode_id": pair.a.episode_id,
        "a_start": pair.a.start,
        "b_episode_id": pair.b.episode_id,
        "b_start": pair.b.start,
        "length": pair.a.length,
        "label": label,
        "status": status,
        **dict(zip(("votes_a", "votes_b", "votes_tie", "votes_invalid"), votes, strict=True)),
        "request_ids": list(ids),
    }


def _asked(plan: Plan) -> tuple[list[Pair], list[Question]]:
    pairs = draw_pairs(plan.dataset, plan.num, plan.length, plan.seed)
    return pairs, questions_of(plan.dataset, pairs, plan.swap, plan.votes, plan.card)


def _requests(plan: Plan) -> list[Request]:
    pairs, questions = _asked(plan)
    return [request(plan.dataset, plan.card, pairs[q.pair], q, plan.sampling) for q in questions]


def _label(plan: Plan, session: AskSession) -> LabelResult:
    pairs, questions = _asked(plan)
    answers = ask_pairs(session, plan.dataset, plan.card, pairs, questions, plan.sampling)
    responses = Responses()
    table = rows(pairs, questions, answers, responses)
    facts = of_pairs(plan.dataset, plan.card, table, responses.rows, by_rules=session.backend.name == "rules")
    return LabelResult(table, responses.rows, facts, any(row["label"] is not None for row in table))


PREF = Variant(("pref", "repair"), 60, _requests, _label, lambda card: pair_prompt(card, A_SEGMENT, A_SEGMENT))
