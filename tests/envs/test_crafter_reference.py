"""Crafter on PyPI crafter: rules as data, seeds, semantics of an episode's end, captions."""

from __future__ import annotations

import warnings

import crafter
import numpy as np
import pytest
from crafter import objects
from gymnasium.utils.env_checker import check_env

import bkrl.envs
from bkrl.core.errors import UsageError
from bkrl.envs.crafter import FAMILY, layout, rules


def reference(env_id="Crafter-Text-Reward", **options):
    return bkrl.envs.make(env_id, backend="reference", **options)


def put(env, name, material=None, obj=None):
    """Place a material or an object in the cell in front of the player."""
    game = env.unwrapped.game
    cell = tuple(game._player.pos + np.array(game._player.facing))
    if game._world[cell][1] is not None:
        game._world.remove(game._world[cell][1])
    game._world[cell] = material or "grass"
    if obj is not None:
        game._world.add(obj(game._world, cell))
    return cell


def action(env, name):
    return env.unwrapped.env_spec.action_names.index(name)


def test_the_tables_are_those_of_the_package():
    data = crafter.constants
    assert list(rules.MATERIALS) == data.materials
    assert list(rules.WALKABLE) == data.walkable
    assert list(rules.ITEMS) == list(data.items)
    assert list(rules.ACHIEVEMENTS) == data.achievements
    assert list(rules.ORIGINAL.actions) == data.actions
    for name, item in data.items.items():
        assert item == {"max": rules.MAX_ITEM, "initial": rules.MAX_ITEM if name in rules.VITALS else 0}
    assert set(rules.COLLECT) == set(data.collect)
    for material, (tool, item, leaves) in rules.COLLECT.items():
        info = data.collect[material]
        assert info["require"] == ({tool: 1} if tool else {})
        assert info["receive"] == {item: 1}
        assert info["leaves"] == leaves
        assert info.get("probability", 1) == (rules.SAPLING_PROBABILITY if material == "grass" else 1)
    assert {k: (v["uses"], tuple(v["where"])) for k, v in data.place.items()} == rules.PLACE
    assert {k: (v["uses"], tuple(v["nearby"])) for k, v in data.make.items()} == rules.MAKE
    assert all(v["gives"] == 1 for v in data.make.values())


def test_the_ids_and_their_rule_sets():
    envs = {env.env_id: env for env in FAMILY.specs()}
    assert len(envs["Crafter-Text-Reward"].action_names) == 20
    assert len(envs["CrafterReward-v1"].action_names) == 17
    assert "original" in envs["CrafterReward-v1"].rules
    assert "text-Crafter" in envs["Crafter-Text-EatCow"].rules
    with pytest.raises(UsageError, match="Crafter-Text-EatCow"):
        bkrl.envs.make("Crafter-Text-EatCows", backend="reference")


@pytest.mark.parametrize(
    "observation", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("symbolic", "image")), "both"]
)
def test_gymnasium_accepts_it(observation):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        warnings.filterwarnings("ignore", message=".*not within the observation space.*shape.*")
        check_env(reference(observation=observation), skip_render_check=False)


def test_episode_e_of_seed_s_is_the_packages():
    env = reference("CrafterReward-v1", observation="image")
    theirs = crafter.Env(seed=7)
    for episode in range(2):
        mine, _ = env.reset(seed=7) if episode == 0 else env.reset()
        np.testing.assert_array_equal(mine, theirs.reset())


@pytest.mark.parametrize(("env_id", "hits"), [("CrafterReward-v1", 3), ("Crafter-Text-Reward", 1)])
def test_damage_of_the_bare_hand(env_id, hits):
    env = reference(env_id)
    env.reset(seed=0)
    do = action(env, "do" if env_id.startswith("CrafterR") else "attack")
    taken = 0
    while env.unwrapped.game._player.achievements["eat_cow"] == 0:
        put(env, "cow", obj=objects.Cow)
        cow = env.unwrapped.game._world.objects[-1]
        cow.health = 3 - taken if hits > 1 else 3
        env.step(do)
        taken += 1
    assert taken == hits


@pytest.mark.parametrize("verb", ["eat", "drink", "attack", "collect"])
def test_the_four_verbs_of_the_text_env_all_act_as_do(verb):
    env = reference()
    env.reset(seed=0)
    put(env, "tree", material="tree")
    info = env.step(action(env, verb))[-1]
    assert info["inventory"]["wood"] == 1


@pytest.mark.parametrize(("env_id", "counted"), [("CrafterReward-v1", 1), ("Crafter-Text-Reward", 0)])
def test_collecting_a_tenth_item(env_id, counted):
    env = reference(env_id)
    env.reset(seed=0)
    env.unwrapped.game._player.inventory["wood"] = 9
    cell = put(env, "tree", material="tree")
    info = env.step(action(env, "do" if counted else "collect"))[-1]
    assert info["inventory"]["wood"] == 9
    assert info["achievements"]["collect_wood"] == counted
    assert env.unwrapped.game._world[cell][0] == "grass"


def test_success_in_a_task_env_terminates_and_pays_one():
    env = reference("Crafter-Text-CollectDrink")
    env.reset(seed=0)
    env.unwrapped.game._player.inventory["drink"] = 5
    put(env, "tree", material="tree")
    _, reward, terminated, truncated, info = env.step(action(env, "collect"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    put(env, "water", material="water")
    _, reward, terminated, truncated, info = env.step(action(env, "drink"))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize(
    ("task", "deed", "material", "needed"),
    [
        ("MakeStonePickaxe", "make_stone_pickaxe", "table", {"wood": 1, "stone": 1}),
        ("CollectCoal", "collect", "coal", {"wood_pickaxe": 1}),
        ("CollectIron", "collect", "iron", {"stone_pickaxe": 1}),
        ("EatPlant", "eat", "plant", {"sapling": 1}),
        ("CollectStone", "collect", "stone", {"wood_pickaxe": 1}),
        ("PlaceFurnace", "place_furnace", "grass", {"stone": 4}),
    ],
)
def test_each_longer_task_pays_for_its_own_deed(task, deed, material, needed):
    env = reference(f"Crafter-Text-{task}")
    env.reset(seed=0)
    if material == "plant":
        put(env, "plant", obj=objects.Plant)
        env.unwrapped.game._world.objects[-1].grown = 200
    else:
        put(env, material, material=material)
    _, reward, terminated, _, info = env.step(action(env, deed))  # without tools, or unripe
    assert (reward, terminated, info["success"]) == (0.0, False, False)
    env.unwrapped.game._player.inventory.update(needed)
    if material == "plant":
        put(env, "plant", obj=objects.Plant)
        env.unwrapped.game._world.objects[-1].grown = 301
    _, reward, terminated, truncated, info = env.step(action(env, deed))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_death_terminates_and_the_clock_truncates():
    env = reference(length=3)
    env.reset(seed=0)
    for step in range(3):
        _, _, terminated, truncated, info = env.step(0)
        assert (terminated, truncated, info["success"]) == (False, step == 2, False)
    env.reset()
    put(env, "lava", material="lava")
    _, reward, terminated, truncated, info = env.step(action(env, "move_down"))
    assert (terminated, truncated, info["success"], info["discount"]) == (True, False, False, 0.0)
    assert reward == pytest.approx(-0.9)
    env.reset()
    env.step(0)
    env.step(0)
    put(env, "lava", material="lava")
    assert env.step(action(env, "move_down"))[2:4] == (True, False)


def test_nothing_is_paid_without_reward():
    env = reference("CrafterNoReward-v1")
    env.reset(seed=0)
    put(env, "tree", material="tree")
    _, reward, _, _, info = env.step(action(env, "do"))
    assert reward == 0.0
    assert info["achievements"]["collect_wood"] == 1


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match="symbolic"):
        reference(observation="symbolik")
    with pytest.raises(UsageError, match="length"):
        reference(length=0)
    env = reference()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"0\.\.19"):
        env.step(20)


def test_symbolic_observation_says_what_the_layout_says():
    env = reference()
    env.reset(seed=3)
    player = env.unwrapped.game._player
    player.inventory["wood_sword"] = 1
    player.sleeping = True
    player.inventory["energy"] = 3
    put(env, "plant", obj=objects.Plant)
    env.unwrapped.game._world.objects[-1].grown = 301
    obs, _, _, _, info = env.step(0)
    assert obs.shape == layout.OBS_SHAPE
    assert obs[layout.INDEX["wood_sword"]] == 1
    assert obs[layout.INDEX["energy"]] == info["inventory"]["energy"] == 3
    assert obs[layout.SLEEPING] == 1
    assert obs[layout.PLAYER_CELL] == layout.CELL["player"]
    assert layout.FACINGS[obs[layout.FACING]] == "down"
    assert obs[layout.FACED_CELL[3]] == layout.CELL["ripe_plant"]
    x, y = info["player_pos"]
    view = obs[layout.VIEW].reshape(7, 9)
    assert view[3, 8] == info["semantic"][x + 4, y]
    assert view[0, 4] == info["semantic"][x, y - 3]


def test_many_at_once_tell_at_an_episodes_end_what_the_engine_tells():
    ended = []
    for backend in ("native", "reference"):
        envs = bkrl.envs.make_vec("Crafter-Typed-Easier", 1, backend=backend, length=3)
        envs.reset(seed=4)
        for deed in ("sleep", "chop grass", "do nothing"):
            _, _, _, truncated, infos = envs.step([envs.env_spec.action_names.index(deed)])
        envs.close()
        assert truncated.all()
        ended.append(infos)
    assert ended[1]["_achievements"].tolist() == [True]
    assert ended[0]["achievements"].dtype == ended[1]["achievements"].dtype
    np.testing.assert_array_equal(ended[0]["achievements"], ended[1]["achievements"])


def test_a_mission_that_names_the_sub_goal_at_hand_is_that_of_the_present():
    envs = bkrl.envs.make_vec("Crafter-Typed-Gardening@subgoals=shown", 1, backend="reference")
    envs.reset(seed=1)
    assert envs.missions().tolist() == ["chop grass"]
    envs.envs[0].unwrapped._tracker.reached[0] = 1
    envs.step([0])
    told = envs.missions()
    assert told.tolist() == ["chop tree"]
    envs.step([0])
    assert envs.missions() is told
    envs.close()
