"""Typed-verb Crafter: the names, the rules and the texts of ELLM, and its tasks."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl import envs
from bkrl.core.errors import InputError, UsageError
from bkrl.envs.crafter import layout, sentences, tasks
from bkrl.envs.crafter.layout import CELL, FACED_CELL
from bkrl.envs.crafter.rules import GAMES
from bkrl.envs.crafter.tasks import TASKS, TaskTracker, composition
from bkrl.envs.crafter.typed_actions import ACTION_SETS, EASIER, TASK_NAMES, VALID, synonyms
from tests.envs import equality_crafter as equality

HARDER = [action.name for action in ACTION_SETS["harder"]]
TYPED = [env_id for env_id in GAMES if GAMES[env_id].rules.typed]
QUICK = {"Crafter-Typed-Full", "Crafter-Typed-Original", "Crafter-Typed-EatPlant"}


@pytest.fixture
def pair():
    """Engine and reference in one place, on grass, with nothing around."""
    made = equality.Pair("Crafter-Typed-Harder", 0, 400)
    for x, y in equality._around(made, 4):
        made.clear(x, y, "grass")
    made.set_item("sapling", 0)
    return made


def faced(pair):
    player = pair.reference.game._player
    return int(player.pos[0] + player.facing[0]), int(player.pos[1] + player.facing[1])


def do(pair, name):
    """The action in both, compared; (action_success, eval_success)."""
    pair.step(HARDER.index(name))
    return pair.info["action_success"], pair.info["eval_success"]


def test_actions_have_the_published_names_and_numbers():
    assert [len(ACTION_SETS[size]) for size in ("easier", "harder", "full")] == [27, 139, 260]
    golden = {6: "mine zombie", 10: "mine stone", 27: "eat cow", 46: "attack cow", 66: "chop tree", 90: "drink water",
              111: "place crafting table", 133: "make wood pickaxe", 138: "make iron sword"}  # fmt: skip
    assert {i: HARDER[i] for i in golden} == golden
    assert (EASIER[16], EASIER[18]) == ("sleep", "place crafting table")
    assert (len(VALID), set(VALID) - set(HARDER)) == (29, set())
    for actions in ACTION_SETS.values():
        assert len({action.name for action in actions}) == len(actions)
    assert [synonyms("eat cow"), synonyms("sleep")] == [("eat cow", "attack cow"), ("sleep",)]


@pytest.mark.parametrize(
    ("ground", "thing", "held", "action", "expected"),
    [
        ("stone", None, {}, "mine stone", (True, False)),  # without a pickaxe
        ("stone", None, {"wood_pickaxe": 1}, "mine stone", (True, True)),
        ("tree", None, {}, "drink tree", (True, False)),
        ("tree", None, {}, "chop tree", (True, True)),
        ("tree", None, {"wood": 9}, "chop tree", (True, False)),  # the tile is gone, nothing is held more
        ("tree", None, {"stone": 1}, "place stone", (True, False)),
        ("grass", None, {"stone": 1}, "place stone", (True, True)),
        ("grass", None, {}, "attack grass", (True, False)),
        ("grass", None, {}, "attack cow", (False, False)),
        ("grass", "cow", {}, "eat cow", (True, True)),
        ("grass", "zombie", {}, "attack zombie", (True, True)),
        ("grass", "zombie", {}, "attack cow", (False, False)),
        ("grass", "plant", {}, "eat plant", (True, False)),  # not ripe
        ("water", "cow", {}, "drink water", (True, False)),  # the cow does not hinder; drink is 9 already
        ("tree", "cow", {}, "chop tree", (True, True)),
        ("grass", None, {"wood_pickaxe": 1}, "make wood pickaxe", (True, False)),  # no table near
        ("grass", None, {"wood": 1}, "place crafting table", (True, True)),
        ("grass", None, {"wood": 1}, "make crafting table", (True, True)),
        ("grass", None, {"sapling": 1}, "place plant", (True, True)),
        ("tree", None, {"sapling": 1}, "place plant", (False, False)),  # a held sapling is no "plant"
        ("table", None, {}, "place crafting table", (False, False)),  # the material is called table
        ("grass", None, {}, "do nothing", (True, True)),
        ("grass", None, {}, "sleep", (False, False)),  # energy is 9
    ],
)
def test_successes_are_the_published_ones(pair, ground, thing, held, action, expected):
    x, y = faced(pair)
    pair.clear(x, y, ground)
    if thing:
        pair.put(thing, x, y, ground)
    for item, amount in held.items():
        pair.set_item(item, amount)
    assert do(pair, action) == expected


def test_moves_succeed_where_the_player_moves(pair):
    assert do(pair, "move down") == (True, True)
    x, y = faced(pair)
    pair.clear(x, y, "water")
    assert do(pair, "move down") == (False, False)


def test_a_sleeper_hears_nothing_but_sleep(pair):
    pair.set_item("energy", 3)
    assert do(pair, "sleep") == (True, True)
    assert do(pair, "sleep") == (True, True)
    assert do(pair, "do nothing") == (False, False)
    assert do(pair, "attack grass") == (False, False)
    pair.set_item("energy", 9)  # wakes before it acts, in the same step
    assert do(pair, "attack grass") == (True, False)
    assert pair.info["achievements"]["wake_up"] == 1


@pytest.mark.parametrize(
    ("env_id", "stage"),
    [
        one if one[0] in QUICK else pytest.param(*one, marks=pytest.mark.slow)
        for one in zip(TYPED[:4] + TYPED[4::9], ["miner", "garden", "besieged"] * 3, strict=False)
    ],
)
def test_the_engine_is_the_reference(env_id, stage):
    assert equality.play(env_id, 11, 60, stage)["action_success"] > 0


def test_typed_actions_can_be_had_with_the_original_numbers():
    """A table costs 2 wood and a cow stands a blow of the bare hand, where ELLM's Crafter asks 1 wood and one blow."""
    for env_id, wood, blows in (("Crafter-Typed-Harder", 1, 1), ("Crafter-Typed-Original", 2, 3)):
        pair = equality.Pair(env_id, 0, 400)
        x, y = faced(pair)
        pair.clear(x, y, "grass")
        pair.set_item("wood", wood - 1)
        assert do(pair, "place crafting table") == (False, False)
        pair.set_item("wood", wood)
        assert do(pair, "place crafting table") == (True, True)
        assert pair.info["inventory"]["wood"] == 0
        pair.clear(x, y, "grass")
        pair.put("cow", x, y, "grass")
        for blow in range(1, blows + 1):
            pair.step(HARDER.index("eat cow"))
            if blow < blows:
                assert pair.info["achievements"]["eat_cow"] == 0
        assert pair.info["achievements"]["eat_cow"] > 0


def observation(cells, facing="down", vitals=(9, 9, 9, 9), **held):
    """A view with these cells at the front, grass under the feet, and the faced cell as given."""
    row = np.zeros(layout.SIZE, np.uint8)
    row[layout.PLAYER_CELL] = CELL["player"]
    row[layout.FACING] = layout.FACINGS.index(facing)
    for i, name in enumerate(cells):
        row[FACED_CELL[layout.FACINGS.index(facing)] if i == 0 else i] = CELL[name]
    row[layout.INVENTORY.start : layout.INVENTORY.start + 4] = vitals
    for item, amount in held.items():
        row[layout.INDEX[item]] = amount
    return row


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            observation(["tree", "grass"], vitals=(9, 9, 8, 9), wood=1),
            "you see grass, and tree. you are targeting tree. you have in your inventory wood. you feel thirsty.",
        ),
        (observation(["grass"]), "you see grass. you are targeting grass."),
        (observation(["sand"]), "you see ."),
        (observation(["table", "ripe_plant"]), "you see crafting table, and plant. you are targeting table."),
        (observation(["ripe_plant"]), "you see plant. you are targeting plant."),
        (observation(["arrow", "path", "lava"]), "you see lava, and path. you are targeting arrow."),
        (
            observation(["cow", "water", "stone"], vitals=(1, 2, 3, 4), sapling=1, iron_sword=2),
            "you see cow, stone, and water. you are targeting cow. "
            "you have in your inventory plant, iron_sword. you feel hurt, hungry, thirsty, sleepy.",
        ),
    ],
)
def test_texts_are_ellms_word_for_word(row, text):
    assert sentences.caption_batch(row[None]) == [text]
    assert envs.captioner("Crafter-Typed-Harder", "ellm")(row[None]) == [text]


def test_equal_keys_are_equal_texts_and_the_other_way_round():
    env = envs.make_vec("Crafter-Typed-Easier", 32)
    rows, _ = env.reset(seed=3)
    rng, seen = np.random.default_rng(0), []
    for _ in range(60):
        rows, *_ = env.step(rng.integers(0, 27, 32))
        seen.append(rows)
    rows = np.concatenate(seen)
    pairs = set(zip(sentences.text_keys(rows).tolist(), sentences.caption_batch(rows), strict=True))
    assert len(pairs) == len({key for key, _ in pairs}) == len({text for _, text in pairs}) > 20


def test_sub_goals_are_as_many_as_the_rules_ask_for():
    assert composition("make wood pickaxe") == (*["chop tree"] * 2, "place crafting table", "make wood pickaxe")
    assert composition("eat plant") == ("chop grass", "place plant", "eat plant")
    stone, iron = composition("make stone pickaxe"), composition("make iron pickaxe")
    assert [stone.count("chop tree"), stone.count("mine stone")] == [3, 1]
    assert [iron.count(deed) for deed in ("chop tree", "mine stone", "mine coal", "mine iron")] == [4, 5, 1, 1]
    assert composition("mine diamond")[:-1] == iron
    assert set(TASKS) == set(TASK_NAMES)
    for task in TASKS.values():
        assert set(task.subgoals) <= set(VALID)


def tracked(name, subgoals="hidden"):
    return TaskTracker(TASKS[name], 1, HARDER, subgoals)


def judged(tracker, deed, strict=True, around=(), holds=False):
    """(reward, done) of one deed."""
    rewards, done, _ = tracker.update(
        np.array([HARDER.index(deed)]), np.array([strict]), np.ones(1, bool), lambda i: around, lambda i, item: holds
    )
    return float(rewards[0]), bool(done[0])


def test_a_task_is_done_by_its_deed_or_a_synonym_when_the_game_did_it():
    tracker = tracked("attack cow")
    assert judged(tracker, "attack cow", strict=False) == (0, False)
    assert judged(tracker, "attack zombie") == (0, False)
    assert judged(tracker, "eat cow") == (1, True)


@pytest.mark.parametrize("name", ["deforestation", "gardening", "vegetarianism", "work and sleep"])
def test_composed_tasks_are_done_in_order(name):
    tracker, deeds = tracked(name), TASKS[name].subgoals
    assert judged(tracker, deeds[-1])[1] is False
    tracker.begin(np.ones(1, bool))
    assert [judged(tracker, deed) for deed in deeds] == [(0, False)] * (len(deeds) - 1) + [(1, True)]


def test_some_tasks_ask_what_lies_around_or_is_held():
    assert judged(tracked("plant row"), "place plant", around=["grass"]) == (0, False)
    assert judged(tracked("plant row"), "place plant", around=["grass", "plant"]) == (1, True)
    assert judged(tracked("make workshop"), "make crafting table", around=["table"]) == (1, True)
    assert judged(tracked("chop grass with wood pickaxe"), "chop grass") == (0, False)
    assert judged(tracked("chop grass with wood pickaxe"), "chop grass", holds=True) == (1, True)
    assert judged(tracked("survival"), "do nothing") == (tasks.SURVIVAL_REWARD, False)


def test_sub_goals_can_be_shown_and_paid():
    tracker = tracked("make wood sword", "paid")
    assert tracker.mission(0) == "chop tree"
    assert [judged(tracker, deed)[0] for deed in TASKS["make wood sword"].subgoals] == [1, 1, 1, 1]
    tracker = tracked("make wood sword", "shown")
    assert [judged(tracker, deed)[0] for deed in TASKS["make wood sword"].subgoals] == [0, 0, 0, 1]
    assert tracker.mission(0) == "make wood sword"


def test_missions_follow_the_sub_goals_and_success_ends_the_episode():
    pair = equality.Pair("Crafter-Typed-PlaceCraftingTable", 0, 400)
    assert pair.native.mission == pair.reference.mission == "place crafting table"
    env = envs.make_vec("Crafter-Typed-PlaceCraftingTable@subgoals=paid", 1, autoreset_mode="Disabled")
    assert envs.mission_is_hidden("Crafter-Typed-PlaceCraftingTable@subgoals=paid")
    env.reset(seed=0)
    assert env.missions().tolist() == ["chop tree"]
    env.engine.envs["inventory"][0, layout.ITEMS.index("wood")] = 3
    state = env.snapshot()
    facing = env.engine.player_position(0) + layout.FACING_STEPS[env.engine.envs["facing"][0]]
    env.engine.envs["materials"][0][tuple(facing)] = CELL["tree"]
    _, rewards, terminated, _, _ = env.step(np.array([HARDER.index("chop tree")]))
    assert (rewards[0], terminated[0], env.missions()[0]) == (1, False, "place crafting table")
    _, rewards, terminated, _, infos = env.step(np.array([HARDER.index("make crafting table")]))
    assert (rewards[0], terminated[0], infos["success"][0], infos["episode"]["r"][0]) == (1, True, True, 2)
    env.restore(state)
    assert env.missions().tolist() == ["chop tree"]
    del state["reached"]
    with pytest.raises(InputError, match="sub-goals"):
        env.restore(state)


def test_wrong_options_get_one_sentence():
    with pytest.raises(UsageError, match=r"Use one of hidden, shown, paid"):
        envs.make_vec("Crafter-Typed-AttackCow@subgoals=show", 1)
    with pytest.raises(UsageError, match="no option 'subgoals'"):
        envs.env_spec("Crafter-Typed-Harder@subgoals=shown")
    with pytest.raises(UsageError, match="en or ellm"):
        envs.captioner("Crafter-Typed-Harder", "fr")
    assert envs.env_spec("Crafter-Typed-Harder").max_steps == 400
    assert envs.env_spec("CrafterReward-v1@length=2000").max_steps == 2000
