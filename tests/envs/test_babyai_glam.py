"""GLAM's levels: kinds of tasks, held-out objects, options, and the engine against minigrid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import scipy
from gymnasium.utils.env_checker import check_env
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.envs import captioner, env_ids, env_spec, make, make_vec, mission_is_hidden
from bkrl.envs.babyai.constants import BALL, BOX, COLOR_NAMES, KEY, TYPE_NAMES
from bkrl.envs.babyai.glam import HELD_OUT, HELD_OUT_DOORS, LEVELS, MIXED, TASK_KINDS, Pair, most_distractors
from bkrl.envs.babyai.glam.reference import GlamEnv
from bkrl.envs.babyai.state import MARGIN
from tests.envs import equality_babyai as equality

TRAIN, TEST, FRENCH = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0", "BabyAI-MixedTrainLocalFrench-v0"
HELD_OUT_WORDS = ("yellow box", "red key", "green ball", "red door", "grey door")


def episodes(env_id: str, count: int, **options: Any) -> tuple[list[str], list[str]]:
    """Missions and kinds of tasks of so many episodes."""
    envs = make_vec(env_id, count, **options)
    _, infos = envs.reset(seed=0)
    return envs.missions().tolist(), infos["task_kind"].tolist()


def test_each_kind_comes_as_often_as_the_others() -> None:
    envs = make_vec(TRAIN, 1)
    envs.reset(seed=3)
    kinds = Counter(str(envs.reset()[1]["task_kind"][0]) for _ in range(500))
    assert set(kinds) == set(MIXED)
    assert scipy.stats.chisquare(list(kinds.values())).pvalue > 0.01


def test_kinds_mixed_in_the_other_ways() -> None:
    for mix, period in (("per-instance", 1), ("balanced", 5)):
        envs = make_vec(TRAIN, 10, task_mix=mix)
        one = make(TRAIN, backend="reference", task_mix=mix)
        rounds = [envs.reset(seed=10 if i == 0 else None)[1]["task_kind"].tolist() for i in range(6)]
        alone = [one.reset(seed=13 if i == 0 else None)[1]["task_kind"] for i in range(6)]
        assert alone == [kinds[3] for kinds in rounds]
        assert len({kinds[3] for kinds in rounds}) == period
        if mix == "balanced":
            assert rounds[0] == [*MIXED, *MIXED]
            assert rounds[5] == rounds[0]
        else:
            assert len(set(rounds[0])) > 1


def test_infos_of_an_ended_episode_are_of_that_episode() -> None:
    envs = make_vec(TRAIN, 5, task_mix="balanced", max_steps=3)
    envs.reset(seed=0)
    kinds = [envs.step(np.full(5, 6))[4]["task_kind"].tolist() for _ in range(4)]
    assert kinds[:3] == [list(MIXED)] * 3
    assert kinds[3] == [*MIXED[1:], MIXED[0]]


FORMS = {
    "BabyAI-PickUpSeqPickUpLocal-v0": {("pick up", ", then ", "pick up"), ("pick up", " after you ", "pick up")},
    "BabyAI-PickUpSeqGoToLocal-v0": {("pick up", ", then ", "go to"), ("go to", " after you ", "pick up")},
    "BabyAI-PickUpThenGoToLocal-v0": {("pick up", ", then ", "go to")},
    "BabyAI-GoToAfterPickUpLocal-v0": {("go to", " after you ", "pick up")},
}


@pytest.mark.parametrize("env_id", FORMS)
def test_sequences_have_their_forms(env_id: str) -> None:
    found = Counter()
    for mission in episodes(env_id, 60)[0]:
        order = ", then " if ", then " in mission else " after you "
        first, second = mission.split(order)
        found[first.split(" the ")[0].split(" a ")[0], order, second.split(" the ")[0].split(" a ")[0]] += 1
        assert not any(words in mission for words in HELD_OUT_WORDS)
    assert set(found) == FORMS[env_id]
    assert min(found.values()) > 15


def test_the_published_levels_have_their_objects_and_limits() -> None:
    objects = {"goto": 9, "pickup": 9, "open": 10, "putnext": 10, "seq": 10}  # the door counts
    limits = {"goto": 64, "pickup": 64, "open": 128, "putnext": 128, "seq": 128}
    env = make(TRAIN, backend="reference")
    for seed in range(30):
        _, info = env.reset(seed=seed)
        cells = [cell for cell in env.inner.grid.grid if cell is not None and cell.type != "wall"]
        assert len(cells) == objects[info["task_kind"]]
        assert env.inner.max_steps == limits[info["task_kind"]]
    assert {env_spec(env_id).max_steps for env_id in LEVELS} == {64, 128}
    env = make("BabyAI-GoToFrench-v0", backend="reference")
    env.reset(seed=1)
    assert sum(cell is not None and cell.type != "wall" for cell in env.inner.grid.grid) == 8


# ------------------------------------------------------------------------------------------------------------ filters


def test_no_training_mission_names_a_held_out_object_and_test_missions_name_nothing_else() -> None:
    train, _ = episodes(TRAIN, 400)
    assert not any(words in mission for mission in train for words in HELD_OUT_WORDS)
    named = 0
    for mission, kind in zip(*episodes(TEST, 200), strict=True):
        left = mission
        for words in HELD_OUT_WORDS:
            left = left.replace(words, "")
        assert not any(word in left.split() for word in (*COLOR_NAMES, "ball", "box", "key", "door"))
        named += kind == "open"
    assert named > 20


def placed(env: GlamEnv) -> set[Pair]:
    return {
        (COLOR_NAMES.index(cell.color), TYPE_NAMES.index(cell.type))
        for cell in env.grid.grid
        if cell is not None and cell.type != "wall"
    }


def test_held_out_objects_lie_about_unless_they_are_kept_out_of_view_too() -> None:
    kinds = {"mission-only": set[Pair](), "also-distractors": set[Pair]()}
    for held_out, seen in kinds.items():
        env = GlamEnv(LEVELS[TRAIN].chosen({"held_out": held_out}))
        for seed in range(100):
            env.reset(seed=seed)
            seen |= placed(env)
    doors = {(color, TYPE_NAMES.index("door")) for color in HELD_OUT_DOORS}
    assert set(HELD_OUT) <= kinds["mission-only"]
    assert not kinds["also-distractors"] & {*HELD_OUT, *doors}
    assert kinds["mission-only"] - kinds["also-distractors"] == set(HELD_OUT)


class Rejecting(GlamEnv):
    """The published way: all objects are drawn anew until the mission may name those that are drawn for it."""

    def _draw_two(self, may_equal: bool) -> tuple[Pair, Pair, list[Pair]]:
        while True:
            n = self.level.num_dists + 2
            pairs = self._others(n)
            first, second = int(self._rand_int(0, n)), int(self._rand_int(0, n))
            while first == second and pairs.count(pairs[first]) == 1:
                second = int(self._rand_int(0, n))
            chosen = {pairs[first], pairs[second]}
            if chosen <= set(self.level.asked_for) and (may_equal or len(chosen) == 2):
                return pairs[first], pairs[second], pairs


@pytest.mark.parametrize(
    ("env_id", "num_dists"), [(TRAIN, 1), (TEST, 0), pytest.param(TEST, 8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("may_equal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_missions_are_distributed_as_by_rejection(env_id: str, num_dists: int, may_equal: bool) -> None:
    """Whether both are the same, how many objects are like the first and like the second, and which come."""
    counts: list[Counter[Any]] = []
    for cls in (GlamEnv, Rejecting):
        env = cls(LEVELS[env_id].chosen({"num_dists": num_dists}))
        env.np_random = np.random.default_rng(7)
        found: Counter[Any] = Counter()
        for _ in range(1500):
            first, second, pairs = env._draw_two(may_equal)
            assert len(pairs) == num_dists + 2
            assert may_equal or first != second
            found[first == second, min(pairs.count(first), 3), min(pairs.count(second), 3), first == HELD_OUT[0]] += 1
        counts.append(found)
    keys = [key for key in counts[0] | counts[1] if counts[0][key] + counts[1][key] >= 10]
    if len(keys) > 1:
        assert scipy.stats.chi2_contingency([[found[key] for key in keys] for found in counts]).pvalue > 0.001


def test_putting_next_to_is_never_drawn_done() -> None:
    env = GlamEnv(LEVELS[TEST].chosen({"task_kinds": "putnext"}))
    for seed in range(40):
        env.reset(seed=seed)
        assert not env.instrs.objs_next()
        try:
            env.check_objs_reachable()
        except RejectSampling:
            pytest.fail("an object cannot be reached")


def layouts(kind: str, room_size: int, num_dists: int, count: int, plain: bool) -> NDArray[np.int64]:
    """(N, figures) of episodes: agent, heading, where the mission's object is, its colour and type, how many there are.

    For an "open" task its door's place instead, and in which half of the map the agent is. All: objects in the corners,
    by the walls, and in the upper half of the room. `plain`: by placing objects at random until all can be reached.
    """
    stride = (room_size - 1) * (2 if kind == "open" else 1) + 1 + 2 * MARGIN
    envs = make_vec(TRAIN, count, task_kinds=(kind,), room_size=room_size, num_dists=num_dists)
    engine = envs.engine
    if plain:
        *tables, crowd = engine._layouts._tables
        assert crowd.ends[:, -1].any()
        engine._layouts._tables = (*tables, crowd._replace(ends=np.zeros((3, 1))))
    envs.reset(seed=10**6 if plain else 0)
    records = engine.envs
    cells = engine._grids.reshape(count, -1, stride)[:, MARGIN:-MARGIN, MARGIN:-MARGIN].astype(np.int64)
    right = records["agent"] % stride - MARGIN >= room_size
    rooms = np.where(right[:, None, None], cells[..., -room_size:], cells[..., :room_size])[:, 1:-1, 1:-1] & 0xF
    full = rooms > 2
    low = full[:, 1:-1, 1:-1].sum((1, 2))
    target = records["target_color"][:, 0] << 4 | records["target_kind"][:, 0]
    meant = cells & 0x7F == (records["target_kind"][:, 0] | records["target_color"][:, 0] << 4)[:, None, None]
    return np.stack(
        [
            records["agent"],
            records["heading"],
            meant.reshape(count, -1).argmax(1),
            target,
            meant.sum((1, 2)),
            right,
            full[:, [0, 0, -1, -1], [0, -1, 0, -1]].sum(1),
            full.sum((1, 2)) - low,
            full[:, : full.shape[1] // 2].sum((1, 2)),
        ],
        1,
    ).astype(np.int64)


@pytest.mark.parametrize(
    ("kind", "room_size", "num_dists", "count"),
    [
        ("pickup", 8, 12, 5000),
        *(pytest.param(kind, 8, 12, 5000, marks=pytest.mark.slow) for kind in MIXED if kind != "pickup"),
        *(pytest.param(kind, 7, 10, 5000, marks=pytest.mark.slow) for kind in ("goto", "open")),
    ],
)
def test_crowded_rooms_are_distributed_as_by_rejection(kind: str, room_size: int, num_dists: int, count: int) -> None:
    ours, theirs = (layouts(kind, room_size, num_dists, count, plain) for plain in (False, True))
    for mine, other in zip(ours.T, theirs.T, strict=True):
        values = np.unique([mine, other])
        table = np.array([[(side == value).sum() for value in values] for side in (mine, other)])
        table = table[:, table.sum(0) >= 10]
        assert table.shape[1] == 1 or scipy.stats.chi2_contingency(table).pvalue > 1e-4


# ------------------------------------------------------------------------------------------------- engine and options


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("goto-after-pickup", "pickup-seq-pickup") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in TASK_KINDS
    ],
)
def test_every_kind_equals_minigrid(kind: str) -> None:
    seen: Counter[str] = Counter()
    for stream, seeds in (("random", [1, 2]), ("meddler", [3, 4]), ("errands", [5, 6]), ("bot", [7, 8])):
        equality.compare(TRAIN, stream, seeds, 100, seen, task_kinds=(kind,), held_out="also-distractors")
    equality.compare(TEST, "errands", [9, 10], 100, seen, task_kinds=(kind,), room_size=5, num_dists=2)
    assert seen[f"kind {kind}"] == seen["steps"] == 1000


@pytest.mark.parametrize("size", [{"num_dists": 16}, {"num_dists": 12}, {"room_size": 7, "num_dists": 9}])
def test_crowded_rooms_equal_minigrid(size: dict[str, int]) -> None:
    """With 9 in a room of size 7, only missions with two objects crowd it."""
    seen: Counter[str] = Counter()
    equality.compare(TRAIN, "errands", [1, 2], 60, seen, task_kinds=MIXED, task_mix="balanced", max_steps=6, **size)
    assert {f"kind {kind}" for kind in MIXED} <= set(seen)


def test_mixed_levels_equal_minigrid() -> None:
    seen: Counter[str] = Counter()
    for i, (env_id, options) in enumerate(
        (
            (TRAIN, {}),
            (TEST, {"room_size": 6, "num_dists": 2, "task_mix": "balanced"}),
            (FRENCH, {"task_mix": "per-instance"}),
            ("BabyAI-GoToFrench-v0", {"language": "fr", "num_dists": 10}),
        )
    ):
        for stream in ("errands", "random"):
            equality.compare(env_id, stream, [50 + i, 60 + i, 70 + i], 200, seen, **options)
    assert seen["success"] > 20
    assert {f"kind {kind}" for kind in MIXED} <= set(seen)


def test_a_snapshot_continues_with_the_same_kinds() -> None:
    for mix in ("per-episode", "per-instance", "balanced"):
        envs = make_vec(TRAIN, 4, task_mix=mix, max_steps=2)
        envs.reset(seed=5)
        for _ in range(3):
            envs.step(np.full(4, 6))
        state = envs.snapshot()
        other = make_vec(TRAIN, 4, task_mix=mix, max_steps=2)
        other.reset(seed=99)
        other.restore(state)
        for _ in range(7):
            mine, theirs = envs.step(np.full(4, 6)), other.step(np.full(4, 6))
            np.testing.assert_array_equal(mine[0], theirs[0])
            assert mine[4]["task_kind"].tolist() == theirs[4]["task_kind"].tolist()
            assert envs.missions().tolist() == other.missions().tolist()


def test_the_vector_environment_of_references_says_the_same() -> None:
    ours, theirs = (make_vec(TRAIN, 3, backend=backend, max_steps=4) for backend in ("native", "reference"))
    assert ours.reset(seed=2)[1]["task_kind"].tolist() == theirs.reset(seed=2)[1]["task_kind"].tolist()
    for _ in range(9):
        mine, other = ours.step(np.full(3, 2)), theirs.step(np.full(3, 2))
        assert mine[4]["task_kind"].tolist() == other[4]["task_kind"].tolist()
        assert ours.missions().tolist() == theirs.missions().tolist()


@pytest.mark.parametrize("env_id", LEVELS)
def test_gymnasium_makes_every_level(env_id: str) -> None:
    assert env_id in env_ids()
    assert mission_is_hidden(env_id)
    env = gym.make(f"bkrl.envs:bkrl/{env_id}", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    _, info = env.reset(seed=1)
    assert info["task_kind"] in LEVELS[env_id].task_kinds
    assert env.step(0)[4]["task_kind"] == info["task_kind"]
    reference = make(env_id, backend="reference", render_mode="rgb_array")
    reference.reset(seed=1)
    reference.step(0)
    np.testing.assert_array_equal(env.render(), reference.render())
    assert gym.make_vec(f"bkrl.envs:{env_id}", 2, num_dists=1).reset(seed=1)[0].shape == (2, 7, 7, 3)


def test_french_levels_speak_french() -> None:
    views, _ = make_vec(FRENCH, 2).reset(seed=0)
    assert all(
        text.startswith("Tu ") for env_id in (FRENCH, "BabyAI-GoToFrench-v0") for text in captioner(env_id)(views)
    )
    assert captioner(FRENCH, "en")(views)[0].startswith("You ")
    verbs = ("aller à", "attraper", "ouvrir", "mettre")
    assert all(mission.startswith(verbs) for mission in episodes(FRENCH, 20)[0])
    assert all(mission.startswith("go to") for mission in episodes("BabyAI-GoToFrench-v0", 5)[0])
    english, _ = episodes(TRAIN, 5)
    assert english != episodes(TRAIN, 5, language="fr")[0]


def test_room_size_and_number_of_distractors() -> None:
    envs = make_vec(TRAIN, 2, room_size=12, num_dists=16)
    assert envs.env_spec.max_steps == 2 * 12**2
    env = GlamEnv(LEVELS[TRAIN].chosen({"num_dists": 0, "task_kinds": ["putnext"]}))
    env.reset(seed=0)
    assert len(placed(env)) == 2


@pytest.mark.parametrize("room_size", [8, 9, 16, 50])
@pytest.mark.parametrize("kind", ["pickup", "open", "putnext"])
def test_the_fullest_rooms_are_drawn(room_size: int, kind: str) -> None:
    """With half of the cells full, no layout of a room of 48 by 48 would ever pass."""
    envs = make_vec(TRAIN, 10, room_size=room_size, num_dists=most_distractors(room_size), task_kinds=(kind,))
    envs.reset(seed=0)
    for state in envs.env_states():
        things = np.isin(state["grid"] & 15, (KEY, BALL, BOX)).sum()
        assert things == most_distractors(room_size) + (2 if kind == "putnext" else 1)


def test_gymnasium_cuts_no_longer_episodes_off_in_silence() -> None:
    for make_one in (gym.make, lambda env_id, **options: gym.make_vec(env_id, 1, **options)):
        with pytest.warns(UserWarning, match="up to 288 steps, and Gymnasium cuts it off after 128"):
            make_one(f"bkrl/{TRAIN}", room_size=12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_kinds": ["goto", "putnxt"]}, "no kind of task 'putnxt'. Did you mean 'putnext'"),
        ({"task_kinds": []}, "task_kinds takes some of goto, pickup, open"),
        ({"task_kinds": ["goto", "goto"]}, "names a kind twice"),
        ({"num_dists": -1}, "num_dists must be a whole number of at least 0, not -1"),
        ({"room_size": 4}, "room_size must be a whole number of at least 5, not 4"),
        ({"room_size": 51}, "room_size must be at most 50"),
        ({"num_dists": 17}, "size 8 takes 16 distractors, not 17"),
        ({"num_dists": 62, "room_size": 16}, "size 16 takes 61 distractors, not 62"),
        ({"language": "de"}, "language must be en or fr, not 'de'"),
        ({"held_out": "all"}, "held_out must be mission-only or also-distractors"),
        ({"task_mix": "random"}, "task_mix must be per-episode or per-instance or balanced"),
        ({"rooms": 3}, "has no option 'rooms'; it knows num_dists"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    for backend in ("native", "reference"):
        with pytest.raises(UsageError, match=message):
            make_vec(TRAIN, 1, backend=backend, **options)


def test_other_levels_have_no_such_options() -> None:
    for env_id in ("BabyAI-GoToLocal-v0", "BabyAI-Text-GoToLocal-RedBall-S20"):
        with pytest.raises(UsageError, match="has no option 'num_dists'"):
            make_vec(env_id, 1, num_dists=3)
        assert "task_kind" not in make_vec(env_id, 1).reset(seed=0)[1]


@pytest.mark.parametrize(("kind", "published", "tolerance"), [("goto", 0.278, 0.08), ("pickup", 0.140, 0.06)])
def test_random_actions_succeed_as_often_as_in_the_published_code(
    kind: str, published: float, tolerance: float
) -> None:
    envs = make_vec(TRAIN, 200, task_kinds=kind)
    envs.reset(seed=0)
    rng, done, success = np.random.default_rng(1), np.zeros(200, bool), np.zeros(200, bool)
    while not done.all():
        _, _, terminated, truncated, infos = envs.step(rng.integers(6, size=200))
        success |= infos["success"] & ~done
        done |= terminated | truncated
        envs.idle_after_episode(np.ones(200, bool))
    assert abs(success.mean() - published) < tolerance


def test_keys_of_held_out_doors_are_never_needed() -> None:
    env = GlamEnv(LEVELS[TRAIN].chosen({"task_kinds": "open"}))
    named = 0
    for seed in range(60):
        env.reset(seed=seed)
        (door,) = (color for color, kind in placed(env) if TYPE_NAMES[kind] == "door")
        assert door not in HELD_OUT_DOORS
        assert (door, KEY) in placed(env)
        named += env.mission == f"open the {COLOR_NAMES[door]} door"
    assert 15 < named < 45
