"""Goals in Housekeep against a naive reading of the votes and of what is seen, step by step."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack

import numpy as np
import pytest

from bkrl.cli.main import run_command
from bkrl.core.config import AskConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.data.views import Views
from bkrl.envs import make_vec, placing
from bkrl.envs.housekeep.captions import receptacles_of, scene_of, things_of
from bkrl.envs.housekeep.labels import truth
from bkrl.envs.housekeep.tables import scene, tasks, votes, words
from bkrl.goals.belonging import compared, measured, open_judge, plain_judge, questions_about, things
from bkrl.goals.closed import AskedJudge
from bkrl.goals.judges import noisy, scores
from bkrl.goals.places import COSTS, PlaceBook, PlaceSource, PlaceTracker
from bkrl.goals.source import Source
from bkrl.llm.choose import Chooser
from bkrl.llm.protocol import Fault
from bkrl.llm.session import AskSession
from bkrl.llm.store import Store
from bkrl.text.prompts import SHIPPED
from tests.goals.test_closed import Scripted
from tests.llm.fault_server import QUICK
from tests.llm.looking import waiting

TASK = "Housekeep-Symbolic-Task1@control=high"
TRAIN = "Housekeep-Symbolic-Original@scene=Pomaria_2_int,control=high"


def naive_right(house: str) -> dict[tuple[str, str], bool]:
    """What belongs where in a house, in loops: six of ten people, by the part-of-name rule."""
    said, known = votes(), scene(house)
    found: dict[tuple[str, str], bool] = {}
    for r, name in enumerate(known.shown):
        counting = [t for t, kind in enumerate(said.types) if kind in known.kinds and kind in known.kinds[r]]
        for o, thing in enumerate(said.objects):
            found[words(thing), name] = any(said.positive[t, o] >= 6 for t in counting)
    return found


class Naive:
    """What one env's agent should want, and be paid, under `once`."""

    def __init__(self, right):
        self.right, self.picked, self.put = right, set(), set()

    def wanted(self, row):
        shown = scene(scene_of(row)).shown
        kinds = {one.slot: words(votes().objects[one.kind]) for one in things_of(row)}
        held = [kinds[one.slot] for one in things_of(row) if one.status == 3]
        if held:
            places = {shown[r] for r in receptacles_of(row)}
            return {(held[0], p) for p in places if self.right.get((held[0], p)) and held[0] not in self.put}
        seen = [(kinds[one.slot], shown[one.on]) for one in things_of(row) if one.status == 2 and one.on >= 0]
        return {(t, "") for t, p in seen if not self.right[t, p] and t not in self.put}

    def paid(self, row, wanted, deed, thing, place):
        if deed == 3:
            return COSTS["scaled"][1]
        if deed == 0:
            return 0.0
        name = words(votes().objects[thing])
        if deed == 1:
            pay = (0.0 if name in self.picked else 1.0) if (name, "") in wanted else COSTS["scaled"][0]
            self.picked.add(name)
            return pay
        where = scene(scene_of(row)).shown[place]
        if (name, where) not in wanted:
            return COSTS["scaled"][0]
        self.put.add(name)
        return 1.0


@pytest.mark.parametrize("env_id", [TASK, TRAIN])
def test_goals_and_pay_are_as_a_naive_reading_has_them(env_id):
    N, known = 6, placing(env_id)
    house = known.house
    envs, rng = make_vec(env_id, N), np.random.default_rng(5)
    tracker = PlaceTracker(PlaceBook(known, plain_judge("oracle", house)), N)
    right = naive_right(house)
    refs = [Naive(right) for _ in range(N)]
    symbols, _ = envs.reset(seed=3)
    started, happened = np.ones(N, bool), 0
    hands = envs.single_action_space.n - 11
    for _ in range(150):
        goals = tracker(Views(symbols), started).astype(bool)
        wanted = [ref.wanted(row) for ref, row in zip(refs, symbols, strict=True)]
        for i in range(N):
            kinds = tracker._before.things[i]
            held = known.things[kinds[tracker._before.held[i]]] if tracker._before.held[i] >= 0 else ""
            said = {(known.things[kinds[d]], "") for d in np.flatnonzero(goals[i, :10])}
            said |= {(held, known.places[d]) for d in np.flatnonzero(goals[i, 10:])}
            assert said == wanted[i]
        # mostly picks and places, or random play hardly ever carries anything
        grabs = hands + rng.integers(0, 11, N)
        actions = np.where(rng.random(N) < 0.5, grabs, rng.integers(0, hands, N))
        before = symbols
        symbols, _, terminated, truncated, infos = envs.step(actions)
        tracker.happened(actions, infos)
        told = zip(infos["deed"].tolist(), infos["deed_thing"].tolist(), infos["deed_place"].tolist(), strict=True)
        expected = [refs[i].paid(before[i], wanted[i], *one) for i, one in enumerate(told)]
        np.testing.assert_allclose(tracker.paid, expected, atol=1e-6)
        happened += np.count_nonzero(tracker.paid > 0)
        started = terminated | truncated
        refs = [Naive(right) if new else ref for new, ref in zip(started, refs, strict=True)]
    envs.close()
    assert happened > 2
    assert tracker.shares()["paid"]["good"] == 1.0
    assert tracker.quality["paid"].sum() == happened  # what is picked up again is paid once


def test_the_truth_is_the_votes_and_the_papers_things_are_known():
    known, naive = truth("Rs_int"), naive_right("Rs_int")
    assert {pair: yes for pair, yes in known.items() if yes != naive[pair]} == {}
    right = sorted(place for (thing, place), yes in known.items() if thing == "lamp" and yes)
    living = [f"living room {place}" for place in ("bottom cabinet", "coffee table", "table")]
    assert right == ["bedroom bottom cabinet", *living]
    assert len(things("tasks")) == len({name for task in tasks() for name in task}) == 19
    assert len(things("seen")) == 110
    assert len(things("unseen")) == 159
    with pytest.raises(UsageError, match="no things 'sen'. Did you mean"):
        things("sen")


def test_scores_against_counting():
    rng = np.random.default_rng(0)
    said = [float(one) if one < 0.9 else math.nan for one in rng.random(400)]
    real = (rng.random(400) < 0.3).tolist()
    pairs = [(one > 0.5, yes, one == one) for one, yes in zip(said, real, strict=True)]
    found = scores(said, real)
    hits = sum(one and yes for one, yes, _ in pairs)
    assert found.precision == hits / sum(one for one, _, _ in pairs)
    assert found.recall == hits / sum(real)
    assert found.accuracy == sum(one == yes for one, yes, _ in pairs) / 400
    assert found.answered == sum(told for _, _, told in pairs) / 400
    assert math.isnan(scores([0.0], [False]).precision)


def test_noisy_votes_have_the_stated_accuracy_and_are_the_same_again():
    oracle = plain_judge("oracle", "Rs_int")
    for accuracy in (1.0, 0.8, 0.5):
        figures, _ = measured(noisy(oracle, accuracy, 4), "all", "Rs_int")
        assert figures.accuracy == pytest.approx(accuracy, abs=0.02)
    questions = list(truth("Rs_int"))[:200]
    assert noisy(oracle, 0.7, 4).judge(questions) == noisy(oracle, 0.7, 4).judge(questions)
    assert noisy(oracle, 0.7, 4).judge(questions) != noisy(oracle, 0.7, 5).judge(questions)
    with pytest.raises(UsageError, match="within 0 and 1"):
        noisy(oracle, 1.1, 0)


def test_the_shipped_prior_reads_rooms_alone():
    prior = plain_judge("zs_mlm")
    same = prior.judge([("fork", "kitchen fridge"), ("fork", "kitchen sink")])
    assert same[0] == same[1]
    assert math.isnan(prior.judge([("fork", "spaceship bridge")])[0])
    assert math.isnan(prior.judge([("unicorn", "kitchen sink")])[0])


def test_a_table_of_suggesters(tmp_path):
    header, rows = compared(["oracle", "rules", "novelty"], "tasks", "Rs_int", 0.9, 1, AskConfig(cache=tmp_path))
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert table["oracle"]["accuracy"] == 1
    assert table["novelty"]["recall"] == 1
    assert table["novelty"]["precision"] == pytest.approx(table["oracle"]["base"])
    assert 0.5 < table["rules"]["balanced"] < 1
    with pytest.raises(UsageError, match="There is no suggester 'orcle'. Did you mean 'oracle'"):
        compared(["orcle"], "tasks", "Rs_int", 0.9, 1, AskConfig(cache=tmp_path))


def test_the_command_takes_ones_own_prices(tmp_path, monkeypatch, capsys):
    """--max-cost was refused where the shipped list has no price, with a sentence that named a flag it had not."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("bkrl.goals.belonging.measured", lambda *_, **__: (_ for _ in ()).throw(InputError("enough")))
    (prices := tmp_path / "prices.toml").write_text('[[price]]\nmodel = "own"\ninput = 3\noutput = 4\n')
    command = ["suggesters", "openai:own", "--max-cost", "1", "--cache", str(tmp_path / "cache")]
    assert run_command(command) == 2
    assert "pass it with --prices FILE" in " ".join(capsys.readouterr().err.split())
    assert run_command([*command, "--prices", str(prices)]) == 3
    assert "enough" in capsys.readouterr().err


def test_a_sample_of_places_says_what_all_of_them_say():
    """Half of it is right, it is the same again, fewer are among more, and shares are told for all places."""
    known = truth()
    few, more = questions_about("seen", "", 200), questions_about("seen", "", 600)
    assert sum(known[one] for one in few) == 100
    assert set(few) < set(more)
    assert few == questions_about("seen", "", 200)
    assert len(questions_about("seen", "", 201)) == 201
    whole, surely = measured(plain_judge("zs_mlm"), "seen")
    part, sure = measured(plain_judge("zs_mlm"), "seen", most=2_000)
    assert part.questions == 2_000
    assert part.base == whole.base
    for name in ("accuracy", "recall", "wrong_accuracy", "balanced"):
        assert getattr(part, name) == pytest.approx(getattr(whole, name), abs=0.03)
    for figure, exact in (("balanced", whole.balanced), ("auc", surely["auc"]["value"])):
        assert sure[figure]["low"] < exact < sure[figure]["high"]
    assert measured(plain_judge("novelty"), "seen", most=200)[0].precision == pytest.approx(whole.base)


def test_a_source_and_a_tracker_come_back_as_they_were():
    N, known = 2, placing(TASK)
    with ExitStack() as stack:
        book = PlaceBook(known, open_judge("rules", known.house, stack))
        envs, rng = make_vec(TASK, N), np.random.default_rng(1)
        symbols, _ = envs.reset(seed=1)
        tracker, started = PlaceTracker(book, N), np.ones(N, bool)
        for _ in range(60):
            goals = tracker(Views(symbols), started)
            actions = rng.integers(0, envs.single_action_space.n, N)
            symbols, _, terminated, truncated, infos = envs.step(actions)
            tracker.happened(actions, infos)
            started = terminated | truncated
        envs.close()
        source = PlaceSource(TASK, book)
        again = Source.of_json(json.loads(json.dumps(source.to_json())))
        np.testing.assert_array_equal(again.book.yes, book.yes)
        other = PlaceTracker(PlaceBook(known, book.suggester), N)
        other.restore(tracker.state())
        for name, one in tracker.state().items():
            np.testing.assert_array_equal(one, other.state()[name])
        np.testing.assert_array_equal(other(Views(symbols), started), tracker(Views(symbols), started))
        assert goals.shape == (N, source.num_deeds)
    plain = PlaceSource(TASK, PlaceBook(known, plain_judge("novelty")), plain={"name": "novelty"})
    assert not Source.of_json(plain.to_json()).book.suggester.knows


@pytest.mark.parametrize("name", ["oracle", "noisy"])
def test_a_policy_that_knows_the_votes_has_goals_in_another_house(name):
    """Of the places that its own house lacks it knew nothing, so that there it lost nearly all of its goals."""
    plain = {"name": name, "accuracy": 0.9, "seed": 0}
    own = PlaceBook(placing(TASK), plain_judge(house="Rs_int", **plain))
    judge = Source.of_json(PlaceSource(TASK, own, plain=plain).to_json()).book.suggester
    for house, least in (("Rs_int", 1.0), ("Pomaria_2_int", 0.95), ("Wainscott_0_int", 0.95)):
        known = truth(house)
        said = np.array(judge.judge([*known]))
        assert not np.isnan(said).any()
        assert np.mean(said == [*known.values()]) >= (least if name == "oracle" else 0.85)


@pytest.mark.parametrize("wait", [True, False])
def test_a_book_that_is_put_back_asks_again_what_failed(tmp_path, wait):
    """What was refused, or answered unclearly, would be so again."""
    known, say = placing(TASK), {"fork": Fault("item", "status 500"), "lamp": Fault("item", "filtered"), "vase": "Ja"}
    pairs = [(known.things.index(name), 0) for name in (*say, "plate")]

    def book(session) -> PlaceBook:
        return PlaceBook(known, AskedJudge("openai:scripted", Chooser(session, wait=wait), SHIPPED))

    def answer(request):
        return next((said for name, said in say.items() if f'"{name}"' in request.messages[-1].text), "Yes")

    backend = Scripted(answer)
    with Store(tmp_path) as store, AskSession(backend, store, QUICK) as session:
        first = book(session)
        first.meet(*np.array(pairs).T)
        while waiting(session):
            time.sleep(0.01)
        first.poll()
        assert np.isnan([first.yes[pair] for pair in pairs]).tolist() == [True, True, True, False]
        saved, asked = first.saved(), len(backend.asked)
        say["fork"] = "Yes"
        again = book(session)
        again.restore(saved)
        while waiting(session):
            time.sleep(0.01)
        again.poll()
        assert len(backend.asked) == asked + 1
        assert np.isnan([again.yes[pair] for pair in pairs]).tolist() == [False, True, True, False]
        assert not again.saved()["open"].any()


def test_envs_that_are_stepped_one_by_one_tell_of_deeds_too():
    paid = []
    for backend in ("native", "reference"):
        envs, rng = make_vec(TASK, 2, backend=backend), np.random.default_rng(3)
        tracker = PlaceTracker(PlaceBook(placing(TASK), plain_judge("oracle", "Rs_int")), 2)
        (symbols, _), started = envs.reset(seed=1), np.ones(2, bool)
        for _ in range(40):
            tracker(Views(symbols), started)
            actions = rng.integers(0, envs.single_action_space.n, 2)
            symbols, _, terminated, truncated, infos = envs.step(actions)
            tracker.happened(actions, infos)
            started = terminated | truncated
            paid.append(tracker.paid.tolist())
        envs.close()
    assert paid[:40] == paid[40:]
    assert np.any(paid)
