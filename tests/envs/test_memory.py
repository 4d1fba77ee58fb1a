"""What is remembered of episodes against what is true: minigrid's own state, Crafter's own counts of achievements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bkrl.envs import env_spec, family, make_vec, memory_of
from bkrl.envs.babyai.constants import AGENT_X, AGENT_Y, DROP, EMPTY, PICKUP
from bkrl.envs.babyai.memory import HANDLING, NAMES
from bkrl.envs.memory import fold

LEVELS = ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0", "BabyAI-UnlockPickup-v0"]


def truth(env: Any, seen: dict[str, set[Any]]) -> list[int]:
    """The fields of RoomMemory by the state of a minigrid env; `seen` is what was true at some time of the episode."""
    grid, here = env.grid, tuple(int(i) for i in env.agent_pos)
    seen["cells_visited"].add(here)
    _, mask = env.gen_obs_grid()
    for x in range(grid.width):
        for y in range(grid.height):
            cell, spot = grid.get(x, y), env.relative_coords(x, y)
            if spot is None or not mask[spot]:
                continue
            if cell is None or cell.type != "wall":
                seen["cells_seen"].add((x, y))
    return [len(seen[name]) for name in NAMES]


@pytest.mark.parametrize(
    "env_id", [pytest.param(one, marks=pytest.mark.slow) if "Obstructed" in one else one for one in LEVELS]
)
def test_rooms_are_remembered_as_they_were(env_id: str) -> None:
    """A walk that turns, walks, picks up and opens whatever it can, followed on minigrid's own objects."""
    env: Any = family("babyai").make_reference(env_spec(env_id))
    inner = env.inner.unwrapped
    memory, rng = memory_of(env_id), np.random.default_rng(1)
    assert memory is not None
    assert memory.names == NAMES
    met = np.zeros(len(NAMES), int)
    for seed in range(6):
        view, _ = env.reset(seed=seed)
        kept = np.zeros((1, memory.size), np.uint8)
        seen: dict[str, set[Any]] = {name: set() for name in NAMES}
        truth(inner, seen)
        first = {name: len(some) for name, some in seen.items()}
        dropped = opened_boxes = 0
        for _ in range(250):
            front, held = inner.grid.get(*inner.front_pos), inner.carrying
            spot, kind = tuple(int(i) for i in inner.front_pos), None if front is None else front.type
            action = int(rng.choice([0, 1, 2, 2, 2, 3, 4, 5]))
            if kind in ("key", "box", "door", "ball") and rng.random() < 0.5:
                action = 3 if kind in ("key", "ball") else 5
            shut, locked = kind == "door" and not front.is_open, kind == "door" and front.is_locked
            before = view
            view, _, terminated, truncated, _ = env.step(action)
            memory.update(kept, before[None], np.array([action]), view[None])
            now = inner.carrying
            if held is None and now is not None:
                seen[f"{now.type}{'es' if now.type == 'box' else 's'}_picked_up"].add((now.type, now.color))
            dropped += held is not None and now is None
            if shut and front.is_open:
                seen["doors_opened"].add(spot)
                if locked:
                    seen["doors_unlocked"].add(spot)
            opened_boxes += action == 5 and kind == "box"
            wanted = np.array(truth(inner, seen))
            wanted -= [first[name] if name.startswith("cells") else 0 for name in NAMES]
            wanted[NAMES.index("boxes_opened")], wanted[NAMES.index("things_put_down")] = opened_boxes, dropped
            assert kept[0, : len(NAMES)].tolist() == np.minimum(wanted, 255).tolist(), (seed, action)
            if terminated or truncated:
                break
        met = np.maximum(met, wanted)
    assert met[0] > 0
    assert met[NAMES.index("things_put_down")] > 0
    if "DoorKey" in env_id:
        assert (met[:5] > 0).all()


@pytest.mark.parametrize("action", [PICKUP, DROP])
def test_a_thing_in_hand_that_no_view_has_shown_is_put_down_but_was_not_picked_up(action: int) -> None:
    """These episodes begin with full hands, and their first view is taken before: picking up the air counted."""
    env_id = "BabyAI-PutNextS5N2Carrying-v0"
    envs, memory = make_vec(env_id, 16), memory_of(env_id)
    assert memory is not None
    before = envs.reset(seed=0)[0].copy()
    after = envs.step(np.full(16, action))[0]
    kept = np.zeros((16, memory.size), np.uint8)
    memory.update(kept, before, np.full(16, action), after)
    fields = dict(zip(NAMES, kept.T, strict=False))
    down = (before[:, AGENT_X, AGENT_Y - 1, 0] == EMPTY) & (action == DROP)  # a wall may be in front
    assert fields["things_put_down"].tolist() == down.tolist()
    assert down.any() == (action == DROP)
    assert not any(fields[name].any() for name in NAMES if name.endswith("picked_up"))


@pytest.mark.parametrize("env_id", ["Crafter-Text-Reward", "CrafterReward-v1"])
def test_achievements_are_found_without_looking_into_the_engine(env_id: str) -> None:
    """By the text rules exactly; by the original ones but for creatures that take several blows."""
    envs: Any = make_vec(env_id, 48)
    memory, rng = memory_of(env_id), np.random.default_rng(0)
    assert memory is not None
    after, _ = envs.reset(seed=0)
    kept, actions = np.zeros((48, memory.size), np.uint8), np.zeros(48, np.int64)
    blows = [memory.names.index(name) for name in ("eat_cow", "defeat_zombie", "defeat_skeleton")]
    sure = np.setdiff1d(np.arange(22), blows if env_id == "CrafterReward-v1" else [])
    met = np.zeros(22, int)
    for _ in range(500):
        again = rng.random(48) < 0.4  # who walks on gets somewhere
        actions = np.where(again, actions, rng.integers(0, len(envs.env_spec.action_names), 48))
        before = after.copy()
        after, _, _, _, infos = envs.step(actions)
        true, last = envs.engine.envs["achievements"].astype(int), after.copy()
        ended = infos.get("_final_obs", np.zeros(48, bool))
        if ended.any():
            true[ended], last[ended] = infos["achievements"][ended], infos["final_obs"][ended]
        memory.update(kept, before, actions, last)
        assert np.array_equal(kept[:, sure], np.minimum(true, 255)[:, sure])
        met = np.maximum(met, true.max(0))
        kept[ended] = 0
    assert (met > 0).sum() >= 7


def test_a_record_is_folded_as_its_episodes_were_lived() -> None:
    """Episodes of several lengths, one after the other, against a fold of each by itself."""
    env_id = "BabyAI-Unlock-v0"
    envs, memory, rng = make_vec(env_id, 4), memory_of(env_id), np.random.default_rng(2)
    assert memory is not None
    lengths = [3, 40, 1, 300]
    views, actions, wanted, first = [], [], [], []
    for seed, length in enumerate(lengths):
        view = envs.reset(seed=10 * seed)[0][0]
        kept = np.zeros((1, memory.size), np.uint8)
        first.append(len(views))
        for _ in range(length):
            views.append(view), wanted.append(kept[0, :9].copy())
            act = rng.integers(0, 7, 4)
            following = envs.step(act)[0][0]
            actions.append(act[0])
            memory.update(kept, view[None], act[:1], following[None])
            view = following
        views.append(view), actions.append(-1), wanted.append(kept[0, :9].copy())
    found = fold(memory, np.array(views), np.array(actions), np.array(first))
    assert np.array_equal(found, np.array(wanted))
    assert found[-1].any()


def test_typed_envs_and_tables_remember_nothing() -> None:
    assert memory_of("Crafter-Typed-Harder") is None
    assert memory_of("Crafter-Text-Reward@length=50") is not None


def test_nothing_is_known_of_what_is_never_counted_where_minigrid_runs_an_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layouts cannot be looked into; asking for them was an error about bots."""
    never = family("babyai").never_counted
    assert "boxes_opened" in never("MiniGrid-DoorKey-6x6-v0")
    monkeypatch.setenv("BABYAI_DONE_ACTIONS", "1")
    assert never("BabyAI-GoToObj-v0@max_steps=9") == ()


@pytest.mark.parametrize(
    "env_id",
    ["BabyAI-UnlockPickup-v0@actions=restricted", "MiniGrid-Dynamic-Obstacles-5x5-v0", "MiniGrid-MemoryS7-v0"],
)
def test_where_nothing_can_be_handled_only_moves_are_counted(env_id: str) -> None:
    """What lay about was taken for what can be picked up, in envs without that action, or where it toggles."""
    assert family("babyai").never_counted(env_id) == HANDLING
    rng, envs, memory = np.random.default_rng(0), make_vec(env_id, 64), memory_of(env_id)
    assert memory is not None
    before, _ = envs.reset(seed=0)
    kept = np.zeros((64, memory.size), np.uint8)
    for _ in range(20):
        view, actions = before.copy(), rng.integers(0, len(envs.env_spec.action_names), 64)
        before, _, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        after = before.copy()
        if ended.any():
            after[ended] = infos["final_obs"][ended]
        memory.update(kept, view, actions, after)
        assert not kept[:, [NAMES.index(name) for name in HANDLING]].any()
        kept[ended] = 0
    assert "keys_picked_up" not in family("babyai").never_counted("BabyAI-UnlockPickup-v0@actions=canonical")
