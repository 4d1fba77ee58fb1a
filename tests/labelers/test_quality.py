"""Quality of label runs: every figure from the tables alone, on judges whose faults are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkrl.data.dataset import Dataset
from bkrl.labelers import goals, preferences, quality
from bkrl.labelers.agreement import share
from bkrl.labelers.asking import Responses, Sampling
from bkrl.labelers.material import EnvCard, return_to_go
from bkrl.llm.protocol import Reply, Request
from tests.experience import write_dataset
from tests.labelers.scripted import CARD, Script, asker

PAIRS = 12
Said = dict[tuple[int, bool, int], str]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_dataset(tmp_path / "d", lengths=(60, 55, 70, 62), shape=(4,))
    return Dataset.open(tmp_path / "d")


def label(dataset: Dataset, said: Said, swap: str = "both", votes: int = 1):  # type: ignore[no-untyped-def]
    """Label PAIRS distinct pairs; `said`: (pair, swapped, sample) → "A" (what is shown first), "B", "tie", or junk."""
    pairs = preferences.draw_pairs(dataset, PAIRS, 7, seed=0)
    questions = preferences.questions_of(dataset, pairs, swap, votes)  # type: ignore[arg-type]
    told = {
        (preferences.request(dataset, CARD, pairs[q.pair], q, Sampling()).messages[-1], q.sample): q for q in questions
    }
    assert len(told) == len(questions) == PAIRS * votes * (2 if swap == "both" else 1)

    def script(request: Request) -> str:
        question = told[request.messages[1], request.sample]
        choice = said[question.pair, question.swapped, question.sample]
        return f'{{"choice": "{choice}"}}' if choice in ("A", "B", "tie") else choice

    return ask(dataset, pairs, questions, script)


def ask(dataset: Dataset, pairs, questions, script: Script):  # type: ignore[no-untyped-def]
    answers = preferences.ask_pairs(asker(script), dataset, CARD, pairs, questions, Sampling())
    responses = Responses()
    table = preferences.rows(pairs, questions, answers, responses)
    return table, responses.rows, quality.of_pairs(dataset, CARD, table, responses.rows, by_rules=False)


def test_an_answer_that_follows_the_position_is_told_from_one_that_does_not(dataset: Dataset) -> None:
    """Pairs 0-2: always the first; 3-8: the same segment; 9: tie and A; 10: junk once; 11: junk twice."""
    said: Said = {}
    for pair in range(PAIRS):
        said[pair, False, 0], said[pair, True, 0] = ("A", "A") if pair < 3 else ("A", "B") if pair % 2 else ("B", "A")
    said[9, False, 0], said[9, True, 0] = "tie", "A"
    said[10, True, 0] = said[11, False, 0] = said[11, True, 0] = "no idea"
    table, responses, facts = label(dataset, said)
    assert [row["label"] for row in table] == [0.5, 0.5, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.25, 0.0, None]
    assert facts["position_bias"] == share(3, 9), "9 pairs were decided in both orders"
    assert facts["swap_consistency"] == share(6, 10)
    assert facts["invalid"] == share(1.5, PAIRS)
    assert facts["tie"] == share(0.5, 11)
    assert facts["first_shown_preferred"] == share(3 + 3 + 1, 11)
    assert facts["not_unanimous"] == share(4, 10)
    assert facts["self_agreement"]["n"] == 0, "nobody was asked twice in one order"
    assert (facts["labelled"], facts["without_label"], facts["identical"]) == (11, 1, 0)
    assert [table[pair]["status"] for pair in (10, 11)] == ["labelled", "unparsed"]
    assert len(responses) == 2 * PAIRS + 3, "junk is asked for once more"
    known = {row["request_id"]: row for row in responses}
    votes = quality.votes_of(table[10], known)
    assert [(vote.swapped, vote.value, vote.status, len(vote.request_ids)) for vote in votes] == [
        (False, "B", "labelled", 1),
        (True, None, "unparsed", 2),
    ]


def test_votes_in_one_order_measure_self_agreement(dataset: Dataset) -> None:
    said: Said = {(pair, False, vote): "A" for pair in range(PAIRS) for vote in range(3)}
    said |= {(pair, False, 2): "B" for pair in range(4)}
    table, _, facts = label(dataset, said, swap="none", votes=3)
    assert facts["self_agreement"] == pytest.approx(share(8 + 4 / 3, PAIRS))
    assert facts["not_unanimous"] == share(4, PAIRS)
    assert facts["krippendorff_alpha"]["n"] == PAIRS
    assert facts["position_bias"]["n"] == facts["swap_consistency"]["n"] == 0
    assert table[0]["label"] == pytest.approx(2 / 3), "the probability that A is better"
    assert quality.agreement_of(table[0]) == pytest.approx(2 / 3)
    assert quality.agreement_of(table[11]) == 1.0


def test_votes_are_read_again_as_they_were_counted(dataset: Dataset) -> None:
    words = ["A", "B", "tie", "junk"]
    said: Said = {
        (pair, swapped, vote): words[(3 * pair + 2 * swapped + pair * vote) % 4]
        for pair in range(PAIRS) for swapped in (False, True) for vote in range(3)
    }  # fmt: skip
    table, responses, _ = label(dataset, said, votes=3)
    known = {row["request_id"]: row for row in responses}
    for row in table:
        values = [vote.value for vote in quality.votes_of(row, known)]
        counts = [values.count(value) for value in ("A", "B", "tie", None)]  # type: ignore[arg-type]
        assert counts == [row[f"votes_{name}"] for name in ("a", "b", "tie", "invalid")]


def test_agreement_with_return_counts_decided_pairs_whose_returns_differ(dataset: Dataset) -> None:
    pairs = preferences.draw_pairs(dataset, PAIRS, 7, seed=0)
    better = ["A" if return_to_go(dataset, p.a) > return_to_go(dataset, p.b) else "B" for p in pairs]
    said: Said = {(i, False, 0): choice for i, choice in enumerate(better)} | {(0, False, 0): "tie"}
    said[1, False, 0] = "B" if better[1] == "A" else "A"
    assert label(dataset, said, swap="none")[2]["agreement_with_return"] == share(10, 11)


def test_refusals_are_votes_without_a_value(dataset: Dataset) -> None:
    pairs = preferences.draw_pairs(dataset, 3, 7, seed=0)
    questions = preferences.questions_of(dataset, pairs, "none", 1)
    table, responses, facts = ask(dataset, pairs, questions, lambda request: Reply("no", "refused"))
    assert facts["invalid"] == share(3, 3)
    assert facts["krippendorff_alpha"] == {"value": None, "low": None, "high": None, "n": 0}
    assert quality.votes_of(table[0], {row["request_id"]: row for row in responses})[0].status == "refused"
    assert quality.agreement_of(table[0]) is None


def test_a_second_opinion_costs_nothing_and_needs_words_it_knows(tmp_path: Path) -> None:
    env_id = "BabyAI-Text-GoToLocal-RedBall-S20"
    write_dataset(tmp_path / "d", lengths=(40, 40), shape=(7, 7, 3), env_id=env_id)
    dataset = Dataset.open(tmp_path / "d")
    row = {
        "a_episode_id": 0, "a_start": 0, "b_episode_id": 1, "b_start": 0, "length": 2, "label": 1.0,
        "status": "labelled", "votes_a": 1, "votes_b": 0, "votes_tie": 0, "votes_invalid": 0, "request_ids": [],
    }  # fmt: skip
    card = EnvCard(env_id, "babyai", ("left", "right"))
    assert quality.rules_choice(dataset, card, row) is None, "'caption 0' means nothing to it"
    assert quality.of_pairs(dataset, card, [row], [], by_rules=False)["agreement_with_rules"]["n"] == 0


def test_goals_from_the_tables(dataset: Dataset) -> None:
    replies = ['{"goals": ["Go to the ball", "sleep"]}', "no", '{"goals": ["go to a ball"]}']
    queries = goals.draw_queries(dataset, 3, 3, 0)
    told = [goals.request(dataset, CARD, query, Sampling()).messages[1] for query in queries]
    answers = goals.ask_goals(
        asker(lambda request: replies[told.index(request.messages[1])]), dataset, CARD, queries, 1, Sampling()
    )
    responses = Responses()
    table = goals.rows(dataset, queries, answers, responses)
    facts = quality.of_goals(table, responses.rows)
    assert facts["invalid"] == share(1, 3), "the repetition of a question is no other question"
    assert (facts["queries"], facts["without_goal"], facts["distinct_goals"]) == (3, 1, 2)
    assert facts["most_frequent"][0] == {"goal": "go to the ball", "queries": 2}


def test_the_table_says_every_figure_with_its_interval_and_n(dataset: Dataset) -> None:
    said: Said = {(pair, swapped, 0): "B" if pair % 3 else "A" for pair in range(PAIRS) for swapped in (False, True)}
    facts = label(dataset, said)[2]
    table = quality.as_table(facts)
    cells = {row[0]: row[1:] for row in table["rows"]}
    assert all(len(row) == len(table["header"]) == 4 for row in table["rows"])
    assert cells["answer follows the position (pairs asked in both orders)"][0::2] == ["100.0 %", "12"]
    assert cells["pairs"][0] == "12"
    unknown = {name for name, value in facts.items() if isinstance(value, dict) and value["n"] == 0}
    assert unknown == {"self_agreement", "agreement_with_return", "agreement_with_rules"}, "all labels are 0.5"
    assert len(cells) == len(facts) - len(unknown), "no other figure is left out"
