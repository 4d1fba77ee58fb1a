"""Goals: what is suggested, which deeds reach it, what that pays, and that a policy file brings its goals along."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bkrl import envs
from bkrl.agents import load_agent
from bkrl.agents.play import Episode, summarise
from bkrl.core.config import PPOConfig
from bkrl.core.errors import InputError, UsageError
from bkrl.core.files import sha256
from bkrl.core.reporter import Reporter
from bkrl.data.views import Views
from bkrl.goals.asked import read_goals
from bkrl.goals.book import GoalBook, told_entries
from bkrl.goals.captions import TrueCaptioner
from bkrl.goals.match import Matcher
from bkrl.goals.source import Source
from bkrl.goals.suggesters import EveryDeed, Noisy, Oracle, deeds_to_suggest
from bkrl.goals.tracker import GoalTracker, ProgressTracker
from bkrl.labelers.answers import LONGEST_GOAL, MOST_GOALS
from bkrl.learn.settings import DQNConfig
from bkrl.methods import TrainRsConfig, find_method
from bkrl.methods.goals import source_of
from bkrl.rewards.goals import GoalReward
from bkrl.runs.record import Run
from bkrl.stages import evaluate, train_rs
from bkrl.text.encoders import HashEncoder
from tests.envs.test_crafter_typed import observation
from tests.potentials.rollouts import rollout_of
from tests.stages.interrupted import the_same_when_killed

SITUATIONS = envs.situations("Crafter-Typed-Harder")
NEW = np.ones(1, bool)


def sensible(*cells, **held):
    vitals = held.pop("vitals", (9, 9, 9, 9))
    row = observation(cells, vitals=vitals, **held)
    return set(SITUATIONS.sensible(int(SITUATIONS.keys(row[None])[0])))


@pytest.mark.parametrize(
    ("cells", "held", "goals"),
    [
        (["sand"], {}, set()),
        (["tree"], {}, {"chop tree"}),
        (["grass", "water"], {}, {"chop grass", "drink water"}),
        (["cow"], {}, {"attack cow", "eat cow"}),
        (["zombie", "skeleton"], {}, {"attack zombie", "attack skeleton"}),
        (["ripe_plant"], {}, {"eat plant"}),
        (["stone", "coal"], {}, set()),
        (["stone", "coal", "iron"], {"wood_pickaxe": 1}, {"mine stone", "mine coal"}),
        (["iron", "diamond"], {"stone_pickaxe": 1}, {"mine iron"}),
        (["diamond"], {"iron_pickaxe": 1}, {"mine diamond"}),
        (["sand"], {"wood": 1}, {"place crafting table", "make crafting table"}),
        (["table"], {"wood": 1}, {"make wood pickaxe", "make wood sword"}),
        (["sand"], {"stone": 3}, {"place stone"}),
        (["sand"], {"stone": 4}, {"place stone", "place furnace"}),
        (["sand"], {"sapling": 1, "vitals": (9, 9, 9, 8)}, {"place plant", "sleep"}),
        (
            ["table", "furnace"],
            {"wood": 1, "coal": 1, "iron": 1},
            {f"make {kind} {tool}" for kind in ("wood", "iron") for tool in ("pickaxe", "sword")},
        ),
    ],
)
def test_the_oracle_knows_what_makes_sense(cells, held, goals):
    assert sensible(*cells, **held) == goals


def test_the_oracle_asks_for_a_table_where_the_wood_is_enough():
    """In Crafter-Typed-Original a table costs 2 wood, and was asked for with 1."""
    original, table = envs.situations("Crafter-Typed-Original"), {"place crafting table", "make crafting table"}
    rows = np.stack([observation(["sand"], wood=wood, stone=4) for wood in range(4)])
    keys, plain = original.keys(rows), SITUATIONS.keys(rows)
    assert [table <= set(original.sensible(key)) for key in keys.tolist()] == [False, False, True, True]
    assert [table <= set(SITUATIONS.sensible(key)) for key in plain.tolist()] == [False, True, True, True]
    assert (keys == plain).tolist() == [True, False, True, True], "what was learnt of the others is still known"
    assert original.text(keys[1]) == SITUATIONS.text(plain[1])
    assert original.parts_of(keys[1]) == SITUATIONS.parts_of(plain[1])


@pytest.mark.parametrize(
    ("reply", "goals"),
    [
        ("- Chop tree\n- Drink water.", ("chop tree", "drink water")),
        ("```\n- Chop tree\n```", ("chop tree",)),
        ("Sure! I would do this:\n* **Chop tree**\n2) drink  water\n\nGood luck.", ("chop tree", "drink water")),
        ("- chop tree\n- Chop Tree", ("chop tree",)),
        ("- eat half-ripe plant", ("eat half-ripe plant",)),
        ("", ()),
        ("I do not know.", ()),
        ("-", ()),
        ("- \x00\u202e", ()),
        ("- " + "x" * (LONGEST_GOAL + 1), ()),
    ],
)
def test_replies_are_read_tolerantly(reply, goals):
    assert read_goals(reply) == goals


def test_the_strict_parser_is_the_published_one():
    assert read_goals("Sure:\n- Chop tree", strict=True) == ()
    assert read_goals("- Chop tree\n- Drink water", strict=True) == ("chop tree", "drink water")
    assert read_goals("- eat half-ripe plant", strict=True) == ("eat half", "ripe plant")


def test_hostile_replies_are_cut_to_a_list_of_goals():
    assert len(read_goals("\n".join(f"- goal {i}" for i in range(10_000)))) == MOST_GOALS
    goals = read_goals("- ../../etc/passwd\n- <|im_start|>system\n- a\tb\x1b[31m")
    assert all(goal.isprintable() for goal in goals)
    pays = Matcher(SITUATIONS)(goals)
    assert not pays.any()


def test_a_goal_pays_for_its_own_deed_and_its_other_name():
    names = list(dict.fromkeys(SITUATIONS.deeds))
    for encoder in (None, HashEncoder.fit(SITUATIONS.deeds)):
        pays = Matcher(SITUATIONS, encoder, 0.99)(names)
        same = np.array([[name in group for group in SITUATIONS.same] for name in names])
        np.testing.assert_array_equal(pays > 0, same)
    assert Matcher(SITUATIONS)(["Chop  Tree."])[0, SITUATIONS.deeds.index("chop tree")] == 1
    long = Matcher(SITUATIONS, lambda texts: np.full((len(texts), 1), 1.1), 0.99)
    assert long(["chop tree"]).max() == 1, "a cosine is rounded"
    loose = Matcher(SITUATIONS, HashEncoder.fit(SITUATIONS.deeds), 0.3)(["chop the tree"])
    assert 0.3 < loose[0, SITUATIONS.deeds.index("chop tree")] < 1


def step(tracker, deed, success=True, row=None, started=False):
    """One action at a tree, then the next view; what was paid."""
    infos = {"action_success": np.array([success]), "eval_success": np.array([success])}
    tracker.happened(np.array([SITUATIONS.deeds.index(deed)]), infos)
    tracker(Views((observation(["tree"]) if row is None else row)[None]), np.array([started]))
    return float(tracker.paid[0])


def followed(suggester, rule="once", success="action", row=None):
    tracker = GoalTracker(
        GoalBook(SITUATIONS, suggester, Matcher(SITUATIONS)), 1, rule, TrueCaptioner(success), counted=True
    )
    tracker(Views((observation(["tree"]) if row is None else row)[None]), NEW)
    return tracker


def test_a_deed_pays_once_an_episode_and_only_where_it_is_a_goal_and_succeeds():
    tracker = followed(Oracle(SITUATIONS))
    assert step(tracker, "chop tree", success=False) == 0
    assert step(tracker, "drink water") == 0
    assert step(tracker, "chop tree") == 1
    assert step(tracker, "chop tree", started=True) == 0
    assert step(tracker, "chop tree") == 1
    cows = observation(["cow"])
    tracker = followed(Oracle(SITUATIONS), row=cows)
    assert [step(tracker, deed, row=cows) for deed in ("eat cow", "attack cow")] == [1, 0]


def test_the_goals_before_the_action_count_not_those_after():
    tracker = followed(Oracle(SITUATIONS))
    assert step(tracker, "chop tree", row=observation(["sand"])) == 1
    assert step(tracker, "chop tree", started=True, row=observation(["sand"])) == 0


def test_other_rules_of_payment():
    assert [step(tracker, "chop tree") for tracker in [followed(Oracle(SITUATIONS), "always")] for _ in range(3)] == [
        1
    ] * 3
    damped = followed(Oracle(SITUATIONS), "damped")
    np.testing.assert_allclose([step(damped, "chop tree") for _ in range(4)], 1 / np.sqrt([1, 2, 3, 4]))
    novelty = followed(EveryDeed(SITUATIONS, "novelty"), success="tried")
    assert [step(novelty, deed, success=False) for deed in ("drink tree", "drink tree", "do nothing")] == [1, 0, 1]


def test_what_is_shown_is_what_can_still_be_paid():
    tracker = followed(Oracle(SITUATIONS))
    views = Views(observation(["tree"])[None])
    shown = tracker(views, np.zeros(1, bool))
    assert [SITUATIONS.deeds[i] for i in np.flatnonzero(shown[0])] == ["chop tree"]
    step(tracker, "chop tree")
    assert not tracker(views, np.zeros(1, bool)).any()


def test_rows_of_the_book_are_in_the_order_in_which_situations_were_met():
    """Also where few come at a time, and in a book that held others before it was restored."""
    rng = np.random.default_rng(0)
    symbols = np.zeros((3000, 82), np.uint8)
    symbols[:, :8] = rng.integers(0, 20, (3000, 8))
    keys, book = SITUATIONS.keys(symbols), GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS))
    met: dict[int, int] = {}
    for start in range(0, 3000, 7):
        some = np.concatenate([keys[start : start + 7], keys[rng.integers(0, start + 7, 5)]])
        for key in sorted(set(some.tolist()) - set(met)):
            met[key] = len(met)
        assert book.rows(some).tolist() == [met[key] for key in some.tolist()]
    assert book.met == len(met)
    used = GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS))
    used.rows(keys[::-1].copy())
    used.restore(book.saved())
    assert used.rows(keys).tolist() == [met[key] for key in keys.tolist()]


def test_a_book_keeps_goals_that_many_situations_have_once():
    """Policies of five million steps were 390 MB of the same words."""
    rng = np.random.default_rng(0)
    symbols = np.zeros((3000, 82), np.uint8)
    symbols[:, :8] = rng.integers(0, 20, (3000, 8))
    keys, book = SITUATIONS.keys(symbols), GoalBook(SITUATIONS, EveryDeed(SITUATIONS, "novelty"), Matcher(SITUATIONS))
    book.rows(keys)
    assert len(book.saved()["book"]) < 25 * book.met + 1000
    each = [[key, book.goals[key]] for key in book.goals]  # as files of before have it
    for told in (json.loads(json.dumps(book.entries())), json.loads(json.dumps(each))):
        other = GoalBook(SITUATIONS, None, Matcher(SITUATIONS))
        other.enter(told_entries(told))
        assert other.goals == book.goals
        assert (other.pays[other.rows(keys)] == book.pays[book.rows(keys)]).all()


def test_a_book_keeps_rows_that_many_situations_have_once():
    """A row of 139 numbers for each situation was 360 MB after five million steps."""
    rng = np.random.default_rng(0)
    symbols = np.zeros((3000, 82), np.uint8)
    symbols[:, :4] = rng.integers(0, 20, (3000, 4))
    keys, matcher = np.unique(SITUATIONS.keys(symbols)), Matcher(SITUATIONS)
    noisy = Noisy(SITUATIONS, {"impossible": 0.3}, 7)
    for suggester, few in ((Oracle(SITUATIONS), True), (noisy, False)):
        book = GoalBook(SITUATIONS, suggester, matcher)
        rows = book.rows(keys)
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            goals = suggester.suggest([key])[0]
            assert goals is not None
            assert (book.pays[row] == matcher(goals).max(0, initial=0)).all()
            assert book.unmatched[row] == sum(not matcher([goal]).any() for goal in dict.fromkeys(goals))
            right = [deed in SITUATIONS.sensible(key) for deed in SITUATIONS.deeds]
            assert (book.sensible[row] == right).all()
            assert book.sensible[rows[:1], 5] == book.sensible[rows[:1]][:, 5]
        assert not few or 4 * max(len(book.pays.rows), len(book.sensible.rows)) < len(keys)


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param({"bad_timing": 0.5}, marks=pytest.mark.slow),
        pytest.param({"nonsense": 1.0}, marks=pytest.mark.slow),
        {"impossible": 0.3, "bad_timing": 0.4},
    ],
)
def test_noise_has_the_stated_shares(rates):
    rng = np.random.default_rng(0)
    noisy, book = Noisy(SITUATIONS, rates, 7), GoalBook(SITUATIONS, Noisy(SITUATIONS, rates, 7), Matcher(SITUATIONS))
    rows = np.zeros((3000, 82), np.uint8)
    rows[:, :8] = rng.integers(0, 20, (3000, 8))
    rows[:, 68:80] = rng.random((3000, 12)) < 0.1
    keys = np.unique(SITUATIONS.keys(rows))
    assert noisy.suggest(keys[:50].tolist()) == Noisy(SITUATIONS, rates, 7).suggest(keys[:50].tolist())
    tracker = GoalTracker(book, len(rows), counted=True)
    tracker(Views(rows), np.ones(len(rows), bool))
    shares = tracker.shares()["suggested"]
    for kind in ("bad_timing", "nonsense", "impossible"):
        assert shares[kind] == pytest.approx(rates.get(kind, 0), abs=0.05)
    with pytest.raises(UsageError, match="at most 1"):
        Noisy(SITUATIONS, {"nonsense": 0.7, "impossible": 0.6}, 0)


def test_goals_that_cannot_be_done_here_are_no_moves():
    """Moving and waiting were drawn, too, one in five: they work nearly everywhere."""
    keys = [int(SITUATIONS.keys(observation([cell])[None])[0]) for cell in ("tree", "cow", "water", "ripe_plant")]
    said = {
        goal
        for seed in range(50)
        for goals in Noisy(SITUATIONS, {"bad_timing": 1.0}, seed).suggest(keys)
        for goal in goals
    }
    assert len(said) > 10
    assert said <= {*deeds_to_suggest(SITUATIONS)}


def rollout(rewards, terminated, truncated):
    T, N = rewards.shape
    nothing = np.zeros((0, 1), np.uint8)
    return rollout_of(
        0, np.zeros((T + 1, N, 1), np.uint8), np.zeros((T, N), np.int64), np.zeros((T + 1, N), np.int32), rewards,
        terminated, truncated, np.zeros(0, np.int64), nothing, Views(np.zeros((T + 1, N, 1), np.uint8)),
    )  # fmt: skip


def test_goals_as_a_potential_telescope():
    """Whatever is reached, an episode that ends truly sums to 0; one that is cut off to γ^T of what it reached."""
    gamma = 0.9
    for cut in (False, True):
        tracker = followed(Oracle(SITUATIONS), "always")
        stream = GoalReward(tracker, gamma, form="potential")
        for deed in ("chop tree", "drink water", "chop tree", "sleep"):
            step(tracker, deed)
        end = np.zeros((4, 1), bool)
        end[-1] = True
        none = np.zeros((4, 1), bool)
        paid = stream.rewards(rollout(np.zeros((4, 1), np.float32), none if cut else end, end if cut else none))
        total = sum(gamma**t * reward for t, reward in enumerate(paid[:, 0]))
        assert total == pytest.approx(gamma**4 * 2 if cut else 0, abs=1e-6)


def test_the_published_defect_takes_a_time_limit_for_an_end():
    """--compat b10 left the bootstrap out, and what goals had paid stayed where an episode was cut off."""
    for compat in ("", "b10"):
        config = TrainRsConfig("ellm-ppo", goal_form="potential", env_coef=1.0, compat=compat)
        training = find_method("ellm-ppo").build(config)
        stream = training.learner.streams[1]
        assert stream.cut_ends == (not training.learner.bootstrap_truncated) == bool(compat)
        training.close()
    tracker, none, end = followed(Oracle(SITUATIONS), "always"), np.zeros((2, 1), bool), np.array([[False], [True]])
    stream = GoalReward(tracker, 0.9, form="potential", cut_ends=True)
    for deed in ("chop tree", "drink water"):
        step(tracker, deed)
    first, last = stream.rewards(rollout(np.zeros((2, 1), np.float32), none, end))[:, 0]
    assert first + 0.9 * last == pytest.approx(0, abs=1e-6)


def test_dqn_pays_a_potential_only_as_it_is():
    """It clipped what is taken back at an end to -1, so another task was learnt, and the manifest said otherwise."""
    config = TrainRsConfig("ellm-dqn", goal_form="potential", env_coef=1.0, dqn=DQNConfig(replay_size=10_000))
    with pytest.raises(UsageError, match="ellm-dqn clips rewards to .* pass --raw-rewards"):
        find_method("ellm-dqn").build(config)
    raw = replace(config, dqn=replace(config.dqn, raw_rewards=True))
    assert "kept, exactly" in find_method("ellm-dqn").build(raw).facts["guarantee"]
    clipped = find_method("ellm-dqn").build(replace(config, goal_form="bonus"))
    assert clipped.facts["guarantee"].startswith("none")


SMALL = PPOConfig(num_envs=8, num_steps=32, num_minibatches=4)


def settings(out, **changes):
    base = TrainRsConfig(
        "ellm-ppo", out=out, steps=2_000, eval_every=512, eval_episodes=2, checkpoint_every=512, ppo=SMALL,
        env="Crafter-Typed-Easier@length=60",
    )  # fmt: skip
    return replace(base, **changes)


@pytest.mark.parametrize("network", ["compact", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch, network):
    often = {"steps": 1_024, "eval_every": 256, "checkpoint_every": 256}
    whole = settings(tmp_path / "whole", goal_pay="damped", network=network, **often)
    metrics = the_same_when_killed(whole, monkeypatch)
    assert any("goals/suggested_good" in line for line in metrics)


@pytest.mark.slow
def test_a_killed_run_with_closed_questions_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    metrics = the_same_when_killed(settings(tmp_path / "whole", suggester="random", wanted="all"), monkeypatch)
    assert any("goals/suggested_good" in line for line in metrics)
    goals = Run.open(tmp_path / "whole", "train-rs").facts["goals"]
    assert goals["suggester"] == "random"
    assert 0.4 < goals["goal_auc"]["value"] < 0.6
    assert goals["quality"]["suggested"]["nonsense"] == goals["quality"]["suggested"]["impossible"] == 0
    with pytest.raises(UsageError, match="leave --goal-ask open out"):
        train_rs.run(settings(tmp_path / "no", suggester="equal", goal_ask="open"), Reporter())


def test_goals_of_another_run_are_replayed(tmp_path):
    """`replay:` asked for a run of `bkrl label` once, in which no question about goals can be."""
    first = train_rs.run(settings(tmp_path / "first", suggester="rules", steps=512), Reporter())
    again = settings(tmp_path / "again", suggester=f"replay:{first.path}", steps=512)
    second = train_rs.run(again, Reporter())
    assert sha256(first.file("policy.safetensors")) == sha256(second.file("policy.safetensors"))
    assert second.facts["goals"]["replay_of"] == "rules"
    assert "warnings" not in second.facts
    other = train_rs.run(replace(again, seed=9, out=tmp_path / "other"), Reporter())
    assert "had no answer to the end" in str(other.facts["warnings"])  # it met situations that the first did not meet
    plain = train_rs.run(settings(tmp_path / "plain", steps=128), Reporter())
    with pytest.raises(UsageError, match="asked nobody for its goals"):
        train_rs.run(replace(again, suggester=f"replay:{plain.path}", out=tmp_path / "no"), Reporter())
    with pytest.raises(UsageError, match="has other deeds"):
        train_rs.run(replace(again, env="Crafter-Typed-Harder", out=tmp_path / "no"), Reporter())
    with pytest.raises(UsageError, match="asks nobody"):
        train_rs.outlook(replace(again, dry_run=True))


def test_goals_are_replayed_where_the_rules_are_the_same(tmp_path):
    """Where a table costs more wood, situations with one wood have other numbers, and had no goals without a word."""
    asked = settings(
        tmp_path / "run", suggester="rules", steps=256, eval_every=256, env="Crafter-Typed-Harder@length=60"
    )
    replayed = replace(asked, suggester=f"replay:{train_rs.run(asked, Reporter()).path}", out=tmp_path / "no")
    with ExitStack() as stack:
        assert source_of(replace(replayed, env="Crafter-Typed-AttackCow"), stack).book.suggester.name.startswith(
            "replay:"
        )
        with pytest.raises(UsageError, match="has other deeds or rules"):
            source_of(replace(replayed, env="Crafter-Typed-Original"), stack)


def test_random_suggestions_are_drawn_by_the_seed(tmp_path):
    """Every seed of the control had the same goals, so its interval left their draw out."""

    def suggested(name: str, seed: int) -> list[Any]:
        asked = settings(tmp_path / "no", suggester=name, seed=seed)
        with ExitStack() as stack:
            return source_of(replace(asked, cache=tmp_path / "cache"), stack).book.suggester.suggest(range(6))

    assert suggested("random", 1) != suggested("random", 2)
    assert suggested("random:1", 2) == suggested("random", 1)


def test_a_policy_brings_its_goals_along(tmp_path, monkeypatch):
    asked = settings(tmp_path / "run", suggester="rules", steps=512, wanted="mine stone", network="recurrent")
    run = train_rs.run(asked, Reporter())
    read: list[Any] = []
    monkeypatch.setattr("bkrl.goals.source.told_entries", lambda book: read.append(book) or told_entries(book))
    assert load_agent(run.path).goals.wanted == SITUATIONS.composition(["mine stone"])
    assert len(read) == 1, "they may be a million"
    facts = Run.open(run.path, "train-rs").facts
    assert facts["goals"]["suggester"] == "rules"
    assert facts["goals"]["quality"]["suggested"]["good"] > 0.8
    assert facts["achievements"] == [row for row in run.metrics() if "eval/return" in row][-1]["eval/achievements"]
    from bkrl.core.config import EvaluateConfig

    done = evaluate.run(EvaluateConfig(run.path, out=tmp_path / "eval", episodes=2), Reporter())
    assert done.facts["episodes"] == 2


def test_goals_of_a_plugin_that_is_not_here_are_refused():
    plain = {"name": "elsewhere", "rates": {}, "seed": 0}
    source = Source("Crafter-Typed-Harder", GoalBook(SITUATIONS, None, Matcher(SITUATIONS)), "once", "action", plain)
    with pytest.raises(InputError, match=r"'elsewhere' come from a plugin that is not here; name its module in BKRL"):
        Source.of_json(json.loads(json.dumps(source.to_json())))


def test_an_agent_with_a_memory_is_paid_the_same_goals_and_forgets_at_the_end_of_an_episode():
    learner = find_method("ellm-ppo").build(TrainRsConfig("ellm-ppo", network="recurrent", ppo=SMALL)).learner
    agent = learner.agent
    views = Views(symbols=np.zeros((1, 2, 82), np.uint8), goal=np.zeros((1, 2, agent.goals.num_deeds), np.uint8))
    views.goal[0, 1, 5] = 1
    told = {"hidden": torch.ones(2, 128)}
    for started, differ in ((torch.zeros(1, 2, dtype=torch.bool), True), (torch.ones(1, 2, dtype=torch.bool), False)):
        with torch.no_grad():
            _, _, kept = agent.forward(agent.inputs(views), told, started)
            _, _, fresh = agent.forward(agent.inputs(views), agent.begin(2), started)
        assert torch.equal(kept["hidden"], fresh["hidden"]) != differ
        assert not torch.equal(fresh["hidden"][0], fresh["hidden"][1])  # it reads its goals


def test_achievements_are_counted_in_evaluations():
    episodes = [Episode(0, ""), Episode(1, "")]
    episodes[0].unlocked, episodes[1].unlocked = np.array([1, 1, 0], bool), np.array([0, 0, 1], bool)
    assert summarise(episodes)["eval/achievements"] == 1.5
    assert "eval/achievements" not in summarise([Episode(0, "")])  # MiniGrid has none


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no deeds"):
        train_rs.run(settings(tmp_path / "a", env="Crafter-Text-EatCow"), Reporter())
    with pytest.raises(UsageError, match="env-coef"):
        train_rs.run(settings(tmp_path / "b", goal_form="potential"), Reporter())
    with pytest.raises(UsageError, match="no suggester 'orcle'. Did you mean 'oracle'"):
        train_rs.run(settings(tmp_path / "c", suggester="orcle"), Reporter())
    with pytest.raises(UsageError, match="'make wod sword' can never be reached.* Did you mean 'make wood sword'"):
        train_rs.run(settings(tmp_path / "d", wanted="chop tree, make wod sword"), Reporter())
    with pytest.raises(UsageError, match="'drink tree' can never be reached"):
        train_rs.run(settings(tmp_path / "e", wanted="drink tree"), Reporter())
    assert not list(tmp_path.iterdir())


def shown(tracker, row):
    goals = tracker(Views(row[None]), np.zeros(1, bool))[0]
    return {SITUATIONS.deeds[i] for i in np.flatnonzero(goals)}


def test_what_a_wanted_deed_needs_is_a_goal_as_often_as_it_is_used():
    """A pickaxe takes a table, which takes wood, and wood of its own; it stays a goal until it is reached."""

    def wanting(*deeds):
        book, wanted = GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS)), SITUATIONS.composition(deeds)
        return GoalTracker(book, 1, wanted=wanted)

    tree, table = observation(["tree", "cow"]), observation(["table", "tree"], wood=1)
    tracker = wanting("make wood pickaxe")
    tracker(Views(tree[None]), NEW)
    assert shown(tracker, tree) == {"chop tree"}  # the cow serves nothing that is wanted
    assert [step(tracker, "chop tree", row=tree) for _ in range(3)] == [1, 1 / 2, 0]
    assert shown(tracker, observation(["tree"], wood=2)) == {"place crafting table", "make crafting table"}
    assert step(tracker, "make crafting table", row=table) == 1
    assert shown(tracker, table) == {"make wood pickaxe"}
    assert step(tracker, "make wood pickaxe", success=False, row=table) == 0
    assert shown(tracker, table) == {"make wood pickaxe"}
    assert step(tracker, "make wood pickaxe", row=table) == 1
    assert shown(tracker, table) == set()
    again = wanting("make wood pickaxe")
    again(Views(table[None]), NEW)
    again.restore(tracker.state())
    assert shown(again, table) == set()
    assert again(Views(tree[None]), NEW)[0].sum() == 1  # another episode
    everything = wanting(*SITUATIONS.possible)
    everything(Views(tree[None]), NEW)
    assert shown(everything, tree) == {"chop tree", "attack cow", "eat cow"}
    paid = [step(everything, "chop tree", row=tree) for _ in range(8)]  # for a table and six tools
    np.testing.assert_allclose(paid, [*(1 / np.arange(1, 8)), 0])


def test_progress_chooses_the_goals_whose_success_changes():
    """Trees are always felled, cows begin to be caught: what changes is set, what does not seldom is."""
    row, deeds = observation(["tree", "cow"]), SITUATIONS.deeds
    book = GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS))
    tracker = ProgressTracker(book, 1, "once", TrueCaptioner(), seed=3)
    other = ProgressTracker(book, 1, "once", TrueCaptioner(), seed=3)
    succeeded = {"action_success": np.ones(1, bool), "eval_success": np.ones(1, bool)}

    def episode(of, caught):
        before = {deeds[i] for i in np.flatnonzero(of(Views(row[None]), NEW)[0])}
        for deed in ("chop tree", "attack cow") if caught else ("chop tree",):
            of.happened(np.array([deeds.index(deed)]), succeeded)
            assert (of.paid[0] > 0) == (deed in before)  # what was not chosen does not pay
            of(Views(row[None]), np.zeros(1, bool))
        return before

    assert episode(tracker, False) == {"chop tree", "attack cow", "eat cow"}  # nothing is known yet
    early = [episode(tracker, False) for _ in range(600)]
    assert np.mean(["chop tree" in one for one in early[-100:]]) > 0.9  # all that ever changed
    assert np.mean(["eat cow" in one for one in early[-300:]]) < 0.35
    later = [episode(tracker, True) for _ in range(100)]
    assert np.mean(["attack cow" in one for one in later]) > 0.7
    other.restore(tracker.state())
    assert [episode(other, True) for _ in range(20)] == [episode(tracker, True) for _ in range(20)]


def test_progress_chooses_goals_that_the_agent_does_not_see():
    row, book = observation(["tree", "cow"]), GoalBook(SITUATIONS, Oracle(SITUATIONS), Matcher(SITUATIONS))
    seen, blind = (ProgressTracker(book, 1, "once", seed=3, shown=shown) for shown in (True, False))
    succeeded, felled = {"action_success": np.ones(1, bool)}, np.array([SITUATIONS.deeds.index("chop tree")])
    for _ in range(20):
        assert seen(Views(row[None]), NEW).any()
        assert not blind(Views(row[None]), NEW).any()
        for tracker in (seen, blind):
            tracker.happened(felled, succeeded)
        assert (seen.state()["most"] == blind.state()["most"]).all()


def test_progress_is_of_another_suggester(tmp_path, monkeypatch):
    run = settings(tmp_path / "whole", suggester="progress:rules", steps=1200)
    the_same_when_killed(run, monkeypatch)
    facts = Run.open(tmp_path / "whole", "train-rs").facts["goals"]
    assert (facts["suggester"], facts["chosen_by"]) == ("rules", "progress")
    with pytest.raises(UsageError, match="paid once an episode"):
        train_rs.run(settings(tmp_path / "no", suggester="progress:uniform"), Reporter())
    with pytest.raises(UsageError, match="another one after progress:"):  # it was progress:oracle by another name
        train_rs.run(settings(tmp_path / "no", suggester="progress:progress"), Reporter())
