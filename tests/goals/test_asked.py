"""Goals from an endpoint: asked once for each situation, beside training, kept, and free when they are kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bkrl.envs import situations
from bkrl.goals.asked import AskedSuggester
from bkrl.goals.book import GoalBook
from bkrl.goals.match import Matcher
from bkrl.goals.tracker import GoalTracker
from bkrl.llm import open_backend
from bkrl.llm.protocol import Connection
from bkrl.llm.rules import answer
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.text.prompts import SHIPPED
from tests.envs.test_crafter_typed import observation
from tests.llm.conftest import server  # noqa: F401 - a fixture
from tests.llm.fault_server import QUICK
from tests.llm.looking import waiting

SITUATIONS = situations("Crafter-Typed-Harder")
VIEWS = np.stack([observation([cell]) for cell in ("tree", "water", "cow", "tree")])
KEYS = SITUATIONS.keys(VIEWS)


def suggester(session, **settings):
    return AskedSuggester("openai:m", session, SITUATIONS, SHIPPED, "crafter", **settings)


def test_the_question_holds_the_text_as_data_and_hides_hunger():
    row = observation(["tree", "grass"], vitals=(5, 5, 5, 5), wood=1)
    with AskSession(open_backend("rules", Connection())) as session:
        request = suggester(session).requests(int(SITUATIONS.keys(row[None])[0]))[0]
    said = request.messages[-1].text
    assert json.loads(said[: said.rindex('"') + 1]) == (
        "You see grass, and tree. You are targeting tree. You have in your inventory wood. You feel sleepy."
    )


def test_the_rules_annotator_reads_the_same_prompt():
    row = observation(["tree", "grass"], wood=1)
    with AskSession(open_backend("rules", Connection())) as session:
        asked = suggester(session)
        request = asked.requests(int(SITUATIONS.keys(row[None])[0]))[0]
        goals = asked.suggest(SITUATIONS.keys(row[None]).tolist())
    assert answer([message.text for message in request.messages]).startswith("- ")
    assert goals == [("chop tree", "chop grass", "place crafting table")]


def test_each_situation_is_asked_about_once_and_kept(server, tmp_path: Path):  # noqa: F811
    server.plan = lambda prompt, attempt: "deeds"
    connection = Connection(tmp_path)
    with Store(tmp_path) as store, AskSession(open_backend("openai:m", connection), store, QUICK) as session:
        book = GoalBook(SITUATIONS, suggester(session), Matcher(SITUATIONS))
        tracker = GoalTracker(book, len(VIEWS))
        assert not book.pays[book.rows(KEYS)].any()  # nobody waited
        while waiting(session):
            pass
        assert book.poll() == 3
        again = book.pays[book.rows(KEYS)]
        assert session.budget.sent == 3
        assert tracker.book is book
    with Store(tmp_path) as store, AskSession(open_backend("openai:m", connection), store, QUICK) as session:
        warm = GoalBook(SITUATIONS, suggester(session), Matcher(SITUATIONS))
        np.testing.assert_array_equal(warm.pays[warm.rows(KEYS)], again)
        assert (session.budget.sent, session.usage.cached) == (0, 3)
    assert max(server.billed.values()) == 1


def test_a_reply_that_was_cut_off_is_asked_for_again_and_found_where_it_waited(server, tmp_path: Path):  # noqa: F811
    server.plan = lambda prompt, attempt: "deeds" if attempt else "length"
    goals = []
    for _ in range(2):
        with (
            Store(tmp_path) as store,
            AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK) as session,
        ):
            book = GoalBook(SITUATIONS, suggester(session), Matcher(SITUATIONS))
            book.rows(KEYS)
            while waiting(session):
                pass
            book.poll()
            goals.append(book.pays[book.rows(KEYS)])
            assert book.suggester.facts()["waiting"] == 0
            assert session.budget.sent == (0 if len(goals) > 1 else 6)
    assert goals[0].any()
    np.testing.assert_array_equal(*goals)


def test_an_endpoint_that_fails_leaves_situations_without_goals(server, tmp_path: Path):  # noqa: F811
    server.plan = lambda prompt, attempt: "401"
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK) as session,
    ):
        book = GoalBook(SITUATIONS, suggester(session), Matcher(SITUATIONS))
        book.rows(KEYS)
        while waiting(session):
            pass
        assert book.poll() == 0
        assert not book.pays.rows.any()
        assert session.stopped
        assert (session.usage.asked, set(book.goals.values())) == (0, {None})


@pytest.mark.parametrize("wait", [True, False])
def test_a_book_that_is_put_back_asks_again_about_what_had_no_answer(server, tmp_path: Path, wait):  # noqa: F811
    server.plan = lambda prompt, attempt: "deeds"
    with (
        Store(tmp_path) as store,
        AskSession(open_backend("openai:m", Connection(tmp_path)), store, QUICK) as session,
    ):
        book = GoalBook(SITUATIONS, suggester(session, wait=wait), Matcher(SITUATIONS))
        book.rows(KEYS)
        saved = book.saved()
        other = GoalBook(SITUATIONS, suggester(session, wait=wait), Matcher(SITUATIONS))
        other.restore(saved)
        while waiting(session):
            pass
        book.poll()
        other.poll()
        assert list(other.goals) == list(book.goals)
        assert session.budget.sent <= 3
