"""Labelers: even sampling, honest labels, quality figures against hand-computed ones, the best program chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import InputError
from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset, Segment
from bkrl.labelers import baseline, goals, preferences, quality
from bkrl.labelers.answers import Unparsed
from bkrl.labelers.asking import Asked, Responses, Sampling
from bkrl.labelers.material import draw_segments, return_to_go, segment_text
from bkrl.labelers.preferences import Pair, Question
from bkrl.llm.protocol import Exchange, Fault, Message, Reply, Request
from bkrl.text.mission_words import MissionWords
from tests.experience import write_dataset
from tests.labelers.scripted import CARD, asker


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_dataset(tmp_path / "d", lengths=(30, 3, 8, 20, 6, 12, 9, 11), shape=(4,))
    return Dataset.open(tmp_path / "d")


def test_segments_cover_checkpoints_and_episodes_evenly_and_fit(dataset: Dataset) -> None:
    segments = draw_segments(dataset, 700, 5, generator(0, "t"))
    counts = np.bincount([segment.episode_id for segment in segments], minlength=8)
    assert counts[1] == 0, "too short"
    assert counts[[0, 2, 3, 4, 5, 6, 7]].tolist() == [100] * 7
    assert all(segment.start + 5 <= dataset.lengths[segment.episode_id] for segment in segments)
    assert {segment.start for segment in segments if segment.episode_id == 4} == {0, 1}
    assert segments == draw_segments(dataset, 700, 5, generator(0, "t"))
    with pytest.raises(InputError, match="--length"):
        draw_segments(dataset, 1, 31, generator(0, "t"))


def test_return_to_go_is_discounted_from_the_segment_on(dataset: Dataset) -> None:
    rewards = dataset.rewards[dataset.first_row[1] : dataset.first_row[1] + 3].astype(float)
    expected = rewards[1] + 0.9 * rewards[2]
    assert return_to_go(dataset, Segment(1, 1, 2), 0.9) == pytest.approx(expected)


def test_swapped_questions_are_answered_in_terms_of_the_pair(dataset: Dataset) -> None:
    pairs = [Pair(Segment(0, 0, 3), Segment(2, 1, 3)), Pair(Segment(3, 0, 3), Segment(3, 0, 3))]
    questions = preferences.questions_of(dataset, pairs, "both", 2)
    assert questions == [Question(0, swapped, sample) for swapped in (False, True) for sample in (0, 1)]
    always_first = preferences.ask_pairs(
        asker(lambda request: '{"choice": "A"}'), dataset, CARD, pairs, questions, Sampling()
    )
    table = preferences.rows(pairs, questions, always_first, Responses())
    assert (table[0]["votes_a"], table[0]["votes_b"], table[0]["label"]) == (2, 2, 0.5)
    assert (table[1]["status"], table[1]["label"], table[1]["request_ids"]) == ("identical", 0.5, [])


def test_a_consistent_judge_gives_the_same_answer_in_both_orders(dataset: Dataset) -> None:
    pairs = preferences.draw_pairs(dataset, 40, 3, seed=3)
    questions = preferences.questions_of(dataset, pairs, "both", 1)

    def judge(request: Request) -> str:
        a, b = (part.count("caption 1") + part.count("does b") for part in request.messages[1].text.split("End of")[:2])
        return '{"choice": "%s"}' % ("tie" if a == b else "A" if a > b else "B")

    answers = preferences.ask_pairs(asker(judge), dataset, CARD, pairs, questions, Sampling())
    table = preferences.rows(pairs, questions, answers, Responses())
    decided = [row for row in table if row["label"] in (0.0, 1.0)]
    assert len(decided) > 10
    assert all({row["votes_a"], row["votes_b"]} == {0, 2} for row in decided)


def test_an_answer_that_cannot_be_read_is_asked_for_once_more_and_then_is_no_label(dataset: Dataset) -> None:
    pairs = [Pair(Segment(0, 0, 3), Segment(2, 1, 3)), Pair(Segment(0, 5, 3), Segment(2, 2, 3))]
    questions = preferences.questions_of(dataset, pairs, "none", 1)

    def stubborn_once(request: Request) -> str:
        first = len(request.messages) == 2
        return "hmm" if first or "caption 1" not in request.messages[1].text.split("\n")[1] else '{"choice": "B"}'

    asks = asker(stubborn_once)
    answers = preferences.ask_pairs(asks, dataset, CARD, pairs, questions, Sampling())
    responses = Responses()
    table = preferences.rows(pairs, questions, answers, responses)
    assert sorted(row["status"] for row in table) == ["labelled", "unparsed"]
    assert sorted(str(row["label"]) for row in table) == ["0.0", "None"]
    assert len(responses.rows) == 4
    assert [row["reply"] for row in responses.rows if row["reply"] == "hmm"] == ["hmm"] * 3, "raw text is kept"
    repair = next(request for request in asks.backend.requests if len(request.messages) == 4)  # type: ignore[attr-defined]
    assert "no choice was found" in repair.messages[3].text
    assert [row["request_ids"] for row in table] == [[0, 1], [2, 3]]


def test_refusals_and_failures_carry_no_label(dataset: Dataset) -> None:
    pairs = [Pair(Segment(0, 0, 3), Segment(2, 1, 3)), Pair(Segment(0, 5, 3), Segment(2, 2, 3))]
    questions = preferences.questions_of(dataset, pairs, "none", 1)

    def script(request: Request) -> Reply:
        if "caption 1" in request.messages[1].text.split("\n")[1]:
            raise Fault("item", "context length")
        return Reply("", "refused")

    answers = preferences.ask_pairs(asker(script), dataset, CARD, pairs, questions, Sampling())
    table = preferences.rows(pairs, questions, answers, Responses())
    assert sorted(row["status"] for row in table) == ["failed", "refused"]
    assert [row["label"] for row in table] == [None, None]


def test_goals_are_one_library_without_repetitions(dataset: Dataset) -> None:
    replies = ['{"goals": ["Go to the ball", "sleep"]}', '{"goals": ["go to a ball"]}', "no", '["sleep"]']
    told = {goals.request(dataset, CARD, s, Sampling()).messages[1]: s for s in goals.draw_queries(dataset, 40, 3, 0)}
    prompts, queries = list(told)[:4], list(told.values())[:4]
    answers = goals.ask_goals(
        asker(lambda request: replies[prompts.index(request.messages[1])]), dataset, CARD, queries, 1, Sampling()
    )
    responses = Responses()
    table = goals.rows(dataset, queries, answers, responses)
    found = [(row["query_id"], row["goal"], row["goal_id"], row["status"]) for row in table]
    assert found[:3] == [
        (0, "go to the ball", 0, "labelled"),
        (0, "sleep", 1, "labelled"),
        (1, "go to the ball", 0, "labelled"),
    ]
    assert sum(row["goal"] is None for row in table) == 1
    assert quality.of_goals(table, responses.rows)["distinct_goals"] == 2
    assert table[0]["caption"] == segment_text(dataset, queries[0]).captions[-1]


@pytest.mark.parametrize("name", baseline.NAMES)
def test_controls_ask_nobody_and_cover_every_pair(dataset: Dataset, name: str) -> None:
    pairs = [*preferences.draw_pairs(dataset, 200, 5, seed=1), Pair(Segment(0, 0, 5), Segment(0, 0, 5))]
    table = baseline.rows(name, dataset, pairs, seed=1)
    assert table == baseline.rows(name, dataset, pairs, seed=1)
    assert table[-1]["status"] == "identical"
    assert all(row["label"] in (0.0, 0.5, 1.0) and row["request_ids"] == [] for row in table)
    if name == "return":
        assert all(
            (row["label"] == 1.0) == (return_to_go(dataset, pair.a) > return_to_go(dataset, pair.b))
            for row, pair in zip(table, pairs)
            if row["status"] != "identical"
        )
    else:
        assert 0.35 < np.mean([row["label"] for row in table[:-1]]) < 0.65


def test_controls_call_identical_what_an_annotator_would_be_shown_alike(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dataset, "caption", lambda self, row: "A room.")
    dataset.actions = np.minimum(dataset.actions, 0)
    dataset.missions = [f"go to door {number}" for number in range(dataset.num_episodes)]
    with_missions = replace(CARD, mission_words=MissionWords.of(dataset.missions))
    pairs = [Pair(Segment(0, 0, 5), Segment(2, 0, 5))]
    found = [baseline.rows("random", dataset, pairs, 1, card)[0]["status"] for card in (CARD, with_missions)]
    assert found == ["identical", "labelled"]


def test_an_exchange_without_a_good_reply_has_no_answer() -> None:
    request = Request(())
    assert Exchange(request, "", Reply("x", "truncated")).answer is None
    assert Exchange(request, "", None, "timeout").status == "failed"
    assert Asked((Exchange(request, "", Reply("x")),), Unparsed("why")).status == "unparsed"


def test_a_refusal_of_who_answers_freely_counts_as_no_answer_as_it_did_when_it_was_bought() -> None:
    free = asker(lambda request: Reply("no", "refused"))
    (exchange,) = free.ask([Request((Message("user", "x"),))])
    assert (exchange.status, exchange.answer) == ("refused", None)
    assert (free.usage.failed, free.usage.reasons) == (1, {"refused": 1})
