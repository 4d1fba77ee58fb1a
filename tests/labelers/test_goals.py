"""The goal library: what counts as one goal, and where each came from."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from bkrl.data.dataset import Dataset
from bkrl.data.schema import LIBRARY
from bkrl.labelers import goals
from bkrl.labelers.asking import Responses, Sampling
from bkrl.llm.protocol import Request
from tests.experience import write_dataset
from tests.labelers.scripted import CARD, asker

SAME = [
    ("Go to the red ball", "go to a red ball."),
    ("pick up the keys", "Pick-up the key"),
    ("place a crafting table", "place crafting-table"),
    ("make wood pick-axe", "make wood pickaxe"),
    ("OPEN the Box!", "open some boxes"),
    ("face the cow’s side", "face cow's side"),
    ("eat berries", "eat a berry"),
    ("collect  sapling", "collect saplings"),
]
DIFFERENT = [
    ("go to the red ball", "go to the blue ball"),
    ("fetch the key", "go to the key"),
    ("open the door", "close the door"),
    ("cross the grass", "cross the gras bridge"),
    ("place stone", "collect stone"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_goals_that_say_the_same_are_one(one: str, other: str) -> None:
    assert goals.normal_form(one) == goals.normal_form(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_goals_that_do_not_stay_two(one: str, other: str) -> None:
    assert goals.normal_form(one) != goals.normal_form(other)


def test_every_suggestion_can_be_followed_to_its_reply_and_words(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", lengths=(40, 30), shape=(4,))
    dataset = Dataset.open(tmp_path / "d")
    queries = goals.draw_queries(dataset, 2, 7, 0)
    told = [goals.request(dataset, CARD, query, Sampling()).messages[1] for query in queries]
    said = {
        (0, 0): ["Go to the ball", "sleep"],
        (0, 1): ["go to a ball", "open the box", "open boxes"],
        (1, 0): ["Open the boxes!"],
        (1, 1): [],
    }

    def script(request: Request) -> str:
        return json.dumps({"goals": said[told.index(request.messages[1]), request.sample]})

    answers = goals.ask_goals(asker(script), dataset, CARD, queries, 2, Sampling())
    responses = Responses()
    table = goals.rows(dataset, queries, answers, responses)
    found = [(row["query_id"], row["goal_id"], row["goal"], row["said"], row["request_ids"]) for row in table]
    assert found == [
        (0, 0, "go to the ball", ["go to the ball", "go to a ball"], [0, 1]),
        (0, 1, "sleep", ["sleep"], [0]),
        (0, 2, "open the box", ["open the box", "open boxes"], [1, 1]),
        (1, 2, "open the box", ["open the boxes"], [2]),
        (1, None, None, [], [4]),
    ]
    for row in table:
        for words, request_id in zip(row["said"], row["request_ids"]):
            assert words in responses.rows[request_id]["reply"].lower()
    library = {entry["goal"]: entry for entry in goals.library(table)}
    assert list(library) == ["go to the ball", "sleep", "open the box"]
    box = library["open the box"]
    assert (box["query_ids"], box["request_ids"], box["wording_counts"]) == ([0, 1], [1, 2], [1, 1, 1])
    stored = pa.Table.from_pylist(goals.library(table), schema=LIBRARY).to_pylist()
    assert stored[2]["wordings"] == ["open the box", "open boxes", "open the boxes"]
    assert stored[0]["request_ids"] == [0, 1]
