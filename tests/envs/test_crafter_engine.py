"""The Crafter engine: equal to the reference, and a well-behaved vector environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import opensimplex
import pytest
from gymnasium.utils.env_checker import check_env
from PIL import Image, ImageEnhance

import bkrl.envs
from bkrl.core.errors import InputError, UsageError
from bkrl.core.jit import kernel
from bkrl.envs.crafter import engine as engine_module
from bkrl.envs.crafter import layout
from bkrl.envs.crafter.mt19937 import next_word, randint, seed_stream, skip_words, uniform, uniforms
from bkrl.envs.crafter.noise import ROUGH, lay_noise, noise3, seed_noise
from bkrl.envs.crafter.render import _light
from bkrl.envs.crafter.rules import GAMES
from bkrl.envs.crafter.state import ENV, OBJECT
from tests.envs import equality_crafter as equality

STAGED = [(env_id, stage) for env_id, stage in zip(list(GAMES) * 2, list(equality.STAGES)[1:], strict=False)]


def specs(num=1):
    return np.zeros(num, ENV)


@kernel
def _drawn(records, seed, words, doubles, bulk, integers, stops):
    env = records[0]
    seed_stream(env, seed)
    for i in range(len(words)):
        words[i] = next_word(env)
    for i in range(len(doubles)):
        doubles[i] = uniform(env)
    uniforms(env, bulk)
    for i in range(len(integers)):
        integers[i] = randint(env, stops[i])


@kernel
def _skipped(records, seed, before, count):
    env = records[0]
    seed_stream(env, seed)
    for _ in range(before):
        next_word(env)
    skip_words(env, count)


@kernel
def _noise(records, seed, places, values):
    env = records[0]
    seed_noise(env, seed)
    for i in range(len(places)):
        values[i] = noise3(env, places[i, 0], places[i, 1], places[i, 2])


@kernel
def _laid(records, seed, step_x, step_y, z, bands, plane):
    env = records[0]
    seed_noise(env, seed)
    lay_noise(env, step_x, step_y, z, bands, plane)


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 2, 2**32 - 1])
def test_the_stream_is_numpys(seed):
    theirs = np.random.RandomState(seed)
    words, doubles, bulk = np.zeros(1000, np.uint32), np.zeros(1001), np.zeros(5001)
    stops = np.array([1, 2, 3, 4, 5, 17, 100, 144, 2**31 - 1, 2**32 - 1] * 50)
    integers = np.zeros(len(stops), np.int64)
    records = specs()
    _drawn(records, seed, words, doubles, bulk, integers, stops)
    np.testing.assert_array_equal(words, theirs.randint(0, 2**32, 1000, np.uint32))
    np.testing.assert_array_equal(doubles, [theirs.uniform() for _ in doubles])
    np.testing.assert_array_equal(bulk, theirs.uniform(size=len(bulk)))
    np.testing.assert_array_equal(integers, [theirs.randint(0, stop) for stop in stops])
    np.testing.assert_array_equal(records["mt"][0], theirs.get_state()[1])
    assert records["mt_pos"][0] == theirs.get_state()[2]


@pytest.mark.parametrize(("before", "count"), [(0, 6174), (623, 1), (624, 624), (5, 0), (1000, 6174)])
def test_skipping_is_drawing_and_discarding(before, count):
    records, theirs = specs(), np.random.RandomState(7)
    _skipped(records, 7, before, count)
    theirs.randint(0, 2**32, before + count, np.uint32)
    np.testing.assert_array_equal(records["mt"][0], theirs.get_state()[1])
    assert records["mt_pos"][0] == theirs.get_state()[2]


@pytest.mark.parametrize("seed", [*(pytest.param(one, marks=pytest.mark.slow) for one in (0, 5)), 2**31 - 2])
def test_noise_is_opensimplex_to_the_last_bit(seed):
    rng = np.random.default_rng(seed)
    planes = ((3, 8), (15, 3))
    grid = [(x / size, y / size, z) for x in range(0, 64, 9) for y in range(0, 64, 7) for size, z in planes]
    places = np.concatenate([rng.uniform(-3, 70, (3000, 3)), np.array(grid), np.array([[0, 0, 0], [1, 1, 1]])])
    values = np.zeros(len(places))
    _noise(specs(), seed, places, values)
    simplex = opensimplex.OpenSimplex(seed)
    np.testing.assert_array_equal(values, [simplex.noise3(*place) for place in places])


@pytest.mark.parametrize(("step_x", "step_y", "z"), [(1 / 3, 1 / 3, 8), (1 / 15, 1 / 15, 0), (2 / 3, 1 / 15, 7)])
def test_rough_noise_is_close_where_it_is_asked_for(step_x, step_y, z):
    cells = np.array([(x * step_x, y * step_y, z) for x in range(64) for y in range(64)])
    bands = np.stack([np.arange(64) // 2, 63 - np.arange(64) // 3])
    wanted = (bands[0, :, None] <= np.arange(64)) & (np.arange(64) <= bands[1, :, None])
    for seed in range(40):
        exact, rough = np.zeros(64 * 64), np.zeros(64 * 64, np.float32)
        _noise(specs(), seed, cells, exact)
        _laid(specs(), seed, step_x, step_y, float(z), bands, rough)
        assert np.abs(exact - rough)[wanted.ravel()].max() < ROUGH


def test_pictures_are_neither_compiled_nor_loaded_for_symbolic_observations(monkeypatch):
    for module, name in ((engine_module, "tiles"), (engine_module.kernels, "draw_envs")):
        monkeypatch.setattr(module, name, lambda *args: pytest.fail("a picture was drawn"))
    env = bkrl.envs.make_vec("Crafter-Text-CollectDrink", 2)
    env.reset(seed=0)
    env.step(np.zeros(2, np.int64))
    env.restore(env.snapshot())
    single = bkrl.envs.make("Crafter-Text-CollectDrink")
    single.reset(seed=0)
    assert single.step(0)[-1]["semantic"].shape == (64, 64)


def test_colours_fade_as_in_pillow():
    """In full night nothing of the day's colour is left, so what Pillow makes of it can be seen alone."""
    colours = np.random.default_rng(0).integers(0, 256, (1, 60_000, 3)).astype(np.uint8)
    pale = np.asarray(ImageEnhance.Color(Image.fromarray(colours)).enhance(0.4))[0]
    expected = (0.5 * pale + 0.5 * np.array([0, 16, 64])).astype(np.uint8)
    light, none = kernel(_light.py_func), np.zeros(60_000)
    ours = np.ascontiguousarray(colours[0].T.astype(np.int32))
    light(ours, 60_000, none, none, 0.0, 0.0, np.uint8(0))
    np.testing.assert_array_equal(ours.T, expected)
    grey = np.asarray(ImageEnhance.Color(Image.fromarray(expected[None])).enhance(0.0))[0]
    light(ours := np.ascontiguousarray(colours[0].T.astype(np.int32)), 60_000, none, none, 0.0, 0.0, np.uint8(1))
    np.testing.assert_array_equal(ours.T, (0.5 * grey + 0.5 * np.array([0, 0, 16])).astype(np.uint8))


def test_random_play_agrees_with_the_reference():
    met = equality.play("CrafterReward-v1", 3, 330, guided=False)
    assert met["dark steps"] > 0
    assert met["episodes"] > 0


@pytest.mark.parametrize(
    ("env_id", "stage"),
    [
        one if one[1] in ("craftsman", "miner", "garden") else pytest.param(*one, marks=pytest.mark.slow)
        for one in STAGED
    ],
)
def test_staged_play_agrees_with_the_reference(env_id, stage):
    equality.play(env_id, len(stage), 120, stage, length=260)


def test_every_way_to_die_and_every_tool_agree_with_the_reference():
    pair = equality.Pair("CrafterReward-v1", 1)
    for item, amount in (("wood", 9), ("stone", 9), ("coal", 2), ("iron", 2), ("sapling", 1)):
        pair.set_item(item, amount)
    verbs = pair.reference.env_spec.action_names
    x, y = pair.position
    pair.clear(x, y + 1, "grass")
    for name in ("place_table", "make_wood_pickaxe", "make_stone_pickaxe", "make_wood_sword", "make_stone_sword"):
        pair.step(verbs.index(name))
        assert pair.info["achievements"][name] == 1
    pair.clear(x + 1, y, "tree")
    pair.set_item("wood", 5)
    pair.set_item("stone", 9)
    pair.step(verbs.index("move_right"))
    pair.clear(x + 1, y, "grass")
    for name in ("place_furnace", "make_iron_pickaxe", "make_iron_sword"):
        pair.step(verbs.index(name))
        assert pair.info["achievements"][name] == 1
    pair.clear(x, y - 1, "diamond")
    pair.step(verbs.index("move_up"))
    pair.step(verbs.index("do"))
    assert pair.info["achievements"]["collect_diamond"] == 1
    pair.put("plant", x, y - 1, age=400)
    pair.step(verbs.index("do"))
    assert pair.info["achievements"]["eat_plant"] == 1
    pair.put("skeleton", x - 3, y, "path")
    for step in (1, 2):
        pair.clear(x - step, y, "path")
    hit = pair.info["inventory"]["health"]
    while pair.info["inventory"]["health"] >= hit and pair.steps < 200:
        hit = pair.info["inventory"]["health"]
        pair.step(0)
    assert pair.steps < 200
    pair.set_item("health", 1)
    pair.set_item("food", 0)
    while not pair.step(0):
        pair.set_item("food", 0)
    pair.begin()
    pair.fall_asleep()
    pair.set_item("energy", 2)
    pair.set_item("health", 6)
    pair.put("zombie", pair.position[0] + 1, pair.position[1])
    while not pair.step(0):
        pair.set_item("energy", 2)
    assert pair.info["inventory"]["health"] == 0
    pair.begin()
    pair.clear(pair.position[0], pair.position[1] + 1, "lava")
    assert pair.step(verbs.index("move_down"))


def test_a_difference_is_reported_with_seed_step_and_both_states():
    pair = equality.Pair("CrafterReward-v1", 5)
    pair.vector.engine.envs["inventory"][0, 5] = 3
    with pytest.raises(equality.Mismatch, match=r"(?s)seed 5.*step 1: symbolic differs\nengine: .*\nreference: "):
        pair.step(0)


def test_vector_and_reference_vector_agree():
    native = bkrl.envs.make_vec("Crafter-Text-CollectDrink", 3, observation="both", length=9)
    reference = bkrl.envs.make_vec("Crafter-Text-CollectDrink", 3, backend="reference", observation="both", length=9)
    rng = np.random.default_rng(0)
    for ours, theirs in zip(native.reset(seed=4)[0].items(), reference.reset(seed=4)[0].items(), strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])
    for step in range(24):
        if step == 13:
            mask = np.array([True, False, True])
            seeds = [70, None, None]
            ours = native.reset(seed=seeds, options={"reset_mask": mask})[0]
            theirs = reference.reset(seed=seeds, options={"reset_mask": mask})[0]
            np.testing.assert_array_equal(ours["symbolic"], theirs["symbolic"])
        actions = rng.integers(0, 20, 3)
        obs, rewards, terminated, truncated, infos = native.step(actions)
        other = reference.step(actions)
        for key in obs:
            np.testing.assert_array_equal(obs[key], other[0][key])
        for mine, other_one in zip((rewards, terminated, truncated), other[1:4], strict=True):
            np.testing.assert_array_equal(mine, other_one)
            assert mine.dtype == other_one.dtype
        assert set(other[4]) <= set(infos)
        np.testing.assert_array_equal(infos["success"], other[4]["success"])
        if "final_obs" in other[4]:
            np.testing.assert_array_equal(infos["_final_obs"], other[4]["_final_obs"])
            for key in obs:
                np.testing.assert_array_equal(infos["final_obs"][key], other[4]["final_obs"][key])
            for key in ("r", "l"):
                np.testing.assert_array_equal(infos["episode"][key], other[4]["episode"][key])
        np.testing.assert_array_equal(native.frame(1), reference.frame(1))
    assert native.missions().tolist() == ["", "", ""]


def test_a_plant_stays_ripe_however_long_an_episode_may_be():
    pair = equality.Pair("CrafterReward-v1", 0)
    x, y = pair.position
    for dx, dy in ((2, 0), (1, 1), (1, -1)):  # nobody comes near to eat it
        pair.clear(x + dx, y + dy, "stone")
    pair.put("plant", x + 1, y, age=2**15 - 2)
    for _ in range(3):
        pair.step(0)
    assert (pair.observation["symbolic"] == layout.CELL["ripe_plant"]).any()


def test_restore_then_step_is_step():
    env = bkrl.envs.make_vec("CrafterReward-v1", 4, observation="both", length=120)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(100):
        env.step(rng.integers(0, 17, 4))
    state = env.snapshot()
    assert all(array.dtype == np.uint8 for array in state.values())
    actions = rng.integers(0, 17, (60, 4))
    first = [env.step(a) for a in actions]
    other = bkrl.envs.make_vec("CrafterReward-v1", 4, observation="both", length=120)
    frames: list[np.ndarray] = []
    for target in (env, other):
        target.restore(state)
        assert all(np.array_equal(state[key], target.snapshot()[key]) for key in state)
        frames.append(target.frame(2))
        for before, after in zip(first, (target.step(a) for a in actions), strict=True):
            for key in ("symbolic", "image"):
                np.testing.assert_array_equal(before[0][key], after[0][key])
            np.testing.assert_array_equal(before[1], after[1])
            assert before[4].keys() == after[4].keys()
    np.testing.assert_array_equal(*frames)


def test_a_foreign_snapshot_is_refused_and_changes_nothing():
    env = bkrl.envs.make_vec("CrafterReward-v1", 2)
    env.reset(seed=0)
    before = env.snapshot()
    other = bkrl.envs.make_vec("Crafter-Text-Reward", 2)
    other.reset(seed=1)
    three = bkrl.envs.make_vec("CrafterReward-v1", 3)
    three.reset(seed=1)
    for wrong, words in ((other.snapshot(), "another"), (three.snapshot(), "3 envs"), ({}, "lacks")):
        with pytest.raises(InputError, match=words):
            env.restore(wrong)
    after = env.snapshot()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_threads_change_nothing():
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 17, (50, 5))
    runs = []
    for threads in (1, 3):
        env = bkrl.envs.make_vec("CrafterReward-v1", 5, threads=threads)
        env.reset(seed=9)
        runs.append(np.stack([env.step(a)[0] for a in actions]))
        env.close()
    np.testing.assert_array_equal(*runs)


def test_envs_at_rest_stand_still_after_their_episode_and_change_nothing_for_others():
    actions = np.random.default_rng(0).integers(0, 17, (70, 3))
    resting = np.array([True, False, True])
    plain, rested = (bkrl.envs.make_vec("CrafterReward-v1", 3, observation="both", length=20) for _ in range(2))
    for env in (plain, rested):
        env.reset(seed=4)
    rested.idle_after_episode(resting)
    ended = np.zeros(3, int)
    for step in actions:
        expected, got = plain.step(step), rested.step(step)
        still = resting & (ended > 0)
        for mine, theirs in zip(got[1:4], expected[1:4], strict=True):
            np.testing.assert_array_equal(mine, np.where(still, 0, theirs))
        ended += got[2] | got[3]
        for key in ("symbolic", "image"):
            np.testing.assert_array_equal(
                got[0][key][~(resting & (ended > 0))], expected[0][key][~(resting & (ended > 0))]
            )
            if "final_obs" in got[4]:
                over = got[4]["_final_obs"]
                np.testing.assert_array_equal(got[4]["final_obs"][key][over], expected[4]["final_obs"][key][over])
    assert ended.tolist() == [1, 3, 1]
    for env in (plain, rested):
        env.reset(seed=[7, None, 8], options={"reset_mask": resting})
    for step in actions:
        np.testing.assert_array_equal(plain.step(step)[0]["symbolic"], rested.step(step)[0]["symbolic"])


def test_what_was_handed_out_stays():
    env = bkrl.envs.make_vec("CrafterReward-v1", 2)
    obs, _ = env.reset(seed=0)
    kept = obs.copy()
    rewards = env.step(np.zeros(2, int))[1]
    rewards[:] = 7
    env.step(np.ones(2, int))
    np.testing.assert_array_equal(obs, kept)


def test_tables_of_objects_grow_and_close_their_gaps(monkeypatch):
    monkeypatch.setattr(engine_module, "FIRST_ROWS", 300)
    pair = equality.Pair("CrafterReward-v1", 2)
    x, y = pair.position
    for i in range(-9, 10):
        for j in range(-9, 10):
            if abs(i) + abs(j) > 1 and (i + j) % 2:
                pair.put("plant", x + i, y + j)
    for step in range(60):
        if step % 3 == 0:
            for i in range(-9, 10, 2):
                pair.clear(x + i, y + 3, "sand")
                pair.put("plant", x + i, y + 3)
        if pair.step(0):
            break
        pair.compare_closely()
    assert pair.vector.engine.objects.shape[1] > 300


def test_bad_input_is_refused_and_changes_nothing():
    env = bkrl.envs.make_vec("CrafterReward-v1", 2)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="all envs"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(seed=0)
    before = env.snapshot()
    for actions, words in (
        (np.array([0, 17]), r"0\.\.16"),
        (np.array([0, -1]), r"0\.\.16"),
        (np.zeros(3, int), "shape"),
        (np.zeros(2), "integers"),
    ):
        with pytest.raises(ValueError, match=words):
            env.step(actions)
    with pytest.raises(ValueError, match="negative"):
        env.reset(seed=[-1, 0])
    with pytest.raises(ValueError, match="seeds"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="unknown reset option"):
        env.reset(options={"mask": None})
    after = env.snapshot()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    with pytest.raises(IndexError):
        env.frame(2)
    for option, value in (("observation", "pixels"), ("threads", 0), ("length", 0)):
        with pytest.raises(UsageError, match=option):
            bkrl.envs.make_vec("CrafterReward-v1", 2, **{option: value})
    with pytest.raises(ValueError, match="num_envs"):
        bkrl.envs.make_vec("CrafterReward-v1", 0)


def test_gymnasium_makes_and_accepts_it():
    env = gymnasium.make_vec("Crafter-Text-EatCow", 2, length=5, episode_statistics=True)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    for _ in range(5):
        *_, truncated, infos = env.step(np.zeros(2, int))
    assert truncated.all()
    assert infos["episode"]["l"].tolist() == [5, 5]
    assert infos["achievements"].shape == (2, 22)
    check_env(bkrl.envs.make("Crafter-Text-EatCow", observation="both"), skip_render_check=False)


def test_a_single_env_stops_at_its_end():
    env = bkrl.envs.make("Crafter-Text-EatCow", length=2)
    env.reset(seed=1)
    env.step(0)
    with pytest.raises(ValueError, match="option"):
        env.reset(options={"mask": 1})
    assert env.step(0)[2:4] == (False, True)
    with pytest.raises(RuntimeError, match="over"):
        env.step(0)


def test_256_envs_fit_in_200_megabytes():
    assert 256 * (ENV.itemsize + 1024 * OBJECT.itemsize) < 200e6 / 10
