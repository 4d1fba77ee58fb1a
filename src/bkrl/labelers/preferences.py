"""BK-Pref: which of two segments is better?

Pairs are drawn evenly over checkpoints and episodes. Segments that read the same are ties without asking. With
`swap="both"` each pair is asked in both orders, with `votes` several times; the label is the mean vote for A.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from bkrl.dataset import Dataset, Segment
from bkrl.labelers.answers import CHOICE_SCHEMA, Choice, Unparsed, parse_choice
from bkrl.labelers.asking import Asked, Responses, Sampling, ask_parsed, turns
from bkrl.labelers.material import SegmentText, WorldCard, draw_segments, return_to_go, segment_text
from bkrl.labelers.quality import krippendorff_alpha, pairwise_agreement, share
from bkrl.llm.ask import Asker
from bkrl.llm.protocol import Request
from bkrl.prompts import render
from bkrl.rng import generator

TEMPLATES = ("pref", "repair")
WANTED = 'Reply with one JSON object only: {"thoughts": "...", "choice": "A"}, where choice is "A", "B" or "tie".'
_SWAPPED: dict[str, Choice] = {"A": "B", "B": "A", "tie": "tie"}


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
    """`count` pairs of segments of `length` actions."""
    segments = draw_segments(dataset, 2 * count, length, generator(seed, "label", "pairs"))
    return [Pair(a, b) for a, b in zip(segments[::2], segments[1::2])]


def plan(dataset: Dataset, pairs: list[Pair], swap: Literal["none", "both"], votes: int) -> list[Question]:
    """The questions that have to be asked, in a fixed order; pairs that read the same need none."""
    orders = (False, True) if swap == "both" else (False,)
    return [
        Question(number, swapped, sample)
        for number, pair in enumerate(pairs)
        if segment_text(dataset, pair.a) != segment_text(dataset, pair.b)
        for swapped in orders
        for sample in range(votes)
    ]


def request(dataset: Dataset, world: WorldCard, pair: Pair, question: Question, sampling: Sampling) -> Request:
    """The request for one question."""
    first, second = segment_text(dataset, pair.a), segment_text(dataset, pair.b)
    if question.swapped:
        first, second = second, first
    return Request(
        turns(pair_prompt(world, first, second)),
        schema=CHOICE_SCHEMA,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        reasoning_effort=sampling.effort,
        sample=question.sample,
    )


def pair_prompt(world: WorldCard, a: SegmentText, b: SegmentText) -> list[tuple[str, str]]:
    """The turns of a comparison: the world first (the same in every request), the pair last."""
    return render("pref", world=world, a=a, b=b)


def ask_pairs(
    asker: Asker, dataset: Dataset, world: WorldCard, pairs: list[Pair], questions: list[Question], sampling: Sampling
) -> list[Asked[Choice]]:
    """Ask every question; answers are given back in terms of the pair's own A and B."""

    async def ask(question: Question) -> Asked[Choice]:
        wanted = request(dataset, world, pairs[question.pair], question, sampling)
        asked: Asked[Choice] = await ask_parsed(asker, wanted, parse_choice, WANTED)
        if question.swapped and not isinstance(asked.value, Unparsed):
            return replace(asked, value=_SWAPPED[asked.value])
        return asked

    jobs: list[Callable[[], Awaitable[Asked[Choice]]]] = [partial(ask, question) for question in questions]
    return asker.run(jobs, "label pairs")


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
    return {
        "pair_id": number,
        "a_episode_id": pair.a.episode_id,
        "a_start": pair.a.start,
        "b_episode_id": pair.b.episode_id,
        "b_start": pair.b.start,
        "length": pair.a.length,
        "label": label,
        "status": status,
        "votes_a": a,
        "votes_b": b,
        "votes_tie": ties,
        "votes_invalid": len(asked) - valid,
        "request_ids": [request_id for _, ids in asked for request_id in ids],
    }


def quality(
    dataset: Dataset,
    pairs: list[Pair],
    questions: list[Question],
    answers: list[Asked[Choice]],
    table: list[dict[str, Any]],
    reference: list[Choice | None] | None = None,
) -> dict[str, Any]:
    """Facts about the labels for the manifest and the report.

    `reference`: another annotator's answers to the unswapped questions, to agree or disagree with (None where it has
    none).
    """
    values = [answer.value for answer in answers]
    by_pair: list[list[tuple[Question, Choice]]] = [[] for _ in pairs]
    for question, value in zip(questions, values, strict=True):
        if not isinstance(value, Unparsed):
            by_pair[question.pair].append((question, value))
    shown = [_SWAPPED[value] if question.swapped else value for answers_ in by_pair for question, value in answers_]
    decided_shown = [value for value in shown if value != "tie"]
    units = [[value for _, value in answers_] for answers_ in by_pair]
    decided = [(pair, row["label"]) for pair, row in zip(pairs, table) if row["label"] not in (None, 0.5)]
    gains = [(return_to_go(dataset, pair.a) - return_to_go(dataset, pair.b), label) for pair, label in decided]
    facts: dict[str, Any] = {
        "pairs": len(pairs),
        "identical": sum(row["status"] == "identical" for row in table),
        "labelled": sum(row["status"] == "labelled" for row in table),
        "without_label": sum(row["label"] is None for row in table),
        "tie": share(sum(value == "tie" for value in shown), len(shown)),
        "invalid": share(len(values) - len(shown), len(values)),
        "first_shown_preferred": share(sum(value == "A" for value in decided_shown), len(decided_shown)),
        "position_bias": _position_bias(by_pair),
        "self_agreement": pairwise_agreement(units),
        "krippendorff_alpha": krippendorff_alpha(units),
        "agreement_with_return": share(
            sum((gain > 0) == (label > 0.5) for gain, label in gains if gain != 0), sum(gain != 0 for gain, _ in gains)
        ),
    }
    if reference is not None:
        both = [
            (value, other)
            for question, value, other in zip(questions, values, reference, strict=True)
            if not question.swapped and value in ("A", "B") and other in ("A", "B")
        ]
        facts["agreement_with_rules"] = share(sum(value == other for value, other in both), len(both))
    return facts


def _position_bias(by_pair: list[list[tuple[Question, Choice]]]) -> dict[str, Any]:
    """Among pairs decided in both orders (same vote number): how often the same *place* won, whichever segment stood
    there.
    """
    biased = compared = 0
    for answers in by_pair:
        straight = {question.sample: value for question, value in answers if not question.swapped and value != "tie"}
        for question, value in answers:
            if question.swapped and value != "tie" and question.sample in straight:
                compared += 1
                biased += value != straight[question.sample]
    return share(biased, compared)
