"""What the bot, and chance, reach: all kinds of missions and rooms, held against published figures and naive search."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bkrl.agents.bot import BotAgent
from bkrl.agents.play import Episode, play
from bkrl.agents.protocol import Agent
from bkrl.agents.random import RandomAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.errors import UsageError
from bkrl.envs import env_spec, make_vec
from bkrl.envs.babyai.bot import MAX_CELLS
from bkrl.envs.babyai.constants import (
    BALL,
    BOX,
    CLOSED,
    DOOR,
    EMPTY,
    FORWARD,
    KEY,
    LAVA,
    LOCKED,
    NO_TASK,
    OPEN,
    PUT_NEXT,
    WALL,
)
from bkrl.envs.babyai.state import MEMBER_SHIFT, TRACKED_SHIFT

PUBLISHED = {
    "goto": ((0.278, 53.8), 5.3),
    "pickup": ((0.140, 59.4), 6.3),
    "open": ((0.005, 127.6), 15.3),
    "putnext": ((0.013, 127.1), 12.1),
    "seq": ((0.087, 123.3), 11.9),
}
"""GLAM's code on its training level: success (n = 400) and mean length of random play; mean length of its bot."""


def level(kind: str) -> str:
    return f"BabyAI-MixedTrainLocal-v0@task_kinds={kind},actions=canonical"


def played(agent: Agent, episodes: int, seed: int = 0, greedy: bool = False) -> list[Episode]:
    envs = make_vec(agent.env_id, min(episodes, 128))
    return list(play(agent, envs, episodes, seed=seed, greedy=greedy))


@pytest.mark.parametrize("kind", [*PUBLISHED])
def test_chance_succeeds_as_often_as_published(kind: str) -> None:
    rate, length = PUBLISHED[kind][0]
    facts = env_spec(level(kind))
    episodes = played(RandomAgent(facts.env_id, facts.family, facts.action_names), 300)
    lengths = [one.length for one in episodes]
    error = np.sqrt(rate * (1 - rate) * (1 / 300 + 1 / 400))
    assert abs(np.mean([one.success for one in episodes]) - rate) < 3 * error
    assert abs(np.mean(lengths) - length) < 3 * np.std(lengths) * np.sqrt(1 / 300 + 1 / 400) + 0.05


@pytest.mark.parametrize("kind", [*PUBLISHED])
def test_every_mission_of_glam_is_carried_out_about_as_fast_as_by_the_published_bot(kind: str) -> None:
    episodes = played(BotAgent.of(level(kind)), 300)
    assert all(one.success for one in episodes)
    assert np.mean([one.length for one in episodes]) == pytest.approx(PUBLISHED[kind][1], rel=0.1)


@pytest.mark.parametrize(("kind", "limit"), list(zip(PUBLISHED, (64, 64, 128, 128, 128), strict=True)))
def test_success_pays_less_with_time_and_nothing_at_the_limit(kind: str, limit: int) -> None:
    facts = env_spec(level(kind))
    agents = BotAgent.of(level(kind)), RandomAgent(facts.env_id, facts.family, facts.action_names)
    episodes = [one for agent in agents for one in played(agent, 30)]
    for one in episodes:
        paid = 1 - 0.9 * one.length / limit if one.success else 0
        assert one.episode_return == pytest.approx(paid, abs=1e-6)
        assert one.length == limit or one.success
    assert {one.success for one in episodes} == {True, False}


@pytest.mark.parametrize(
    "env_id",
    [
        "BabyAI-MixedTestLocal-v0",
        "BabyAI-MixedTrainLocalFrench-v0",
        "BabyAI-PickUpSeqPickUpLocal-v0",
        "BabyAI-GoToAfterPickUpLocal-v0",
        "BabyAI-GoToLocal-v0@actions=restricted",
        "BabyAI-PickupDist-v0",  # where a grey object may be a wall
        "BabyAI-BossLevel-v0",
        "BabyAI-MiniBossLevel-v0",
        "BabyAI-Unlock-v0",
        "BabyAI-GoToImpUnlock-v0",
        "BabyAI-UnlockToUnlock-v0",
        "BabyAI-BlockedUnlockPickup-v0",
        "BabyAI-KeyCorridorS4R3-v0",
        "BabyAI-KeyInBox-v0",
        "BabyAI-OpenDoorsOrderN4-v0",
        "BabyAI-MoveTwoAcrossS8N9-v0",
        "BabyAI-PutNextS7N4Carrying-v0",
        "MiniGrid-DoorKey-8x8-v0",
        "MiniGrid-MultiRoom-N6-v0",
        "MiniGrid-FourRooms-v0",
        "MiniGrid-LavaCrossingS9N3-v0",
    ],
)
def test_whatever_can_be_carried_out_is(env_id: str) -> None:
    """In some layouts of Unlock and GoToImpUnlock the only key lies behind the door that it opens."""
    failed = [one.seed for one in played(BotAgent.of(env_id), 40) if not one.success]
    assert [seed for seed in failed if can_be_carried_out(env_id, seed)] == []
    assert len(failed) <= 8


@pytest.mark.parametrize(
    "name", ["Fetch-8x8-N3", "GoToDoor-8x8", "GoToObject-8x8-N2", "PutNear-8x8-N3", "RedBlueDoors-8x8"]
)
def test_tasks_of_minigrids_own_are_carried_out(name: str) -> None:
    assert [one.seed for one in played(BotAgent.of(f"MiniGrid-{name}-v0"), 40) if not one.success] == []


def can_be_carried_out(env_id: str, seed: int) -> bool:
    """Whether each thing that the mission names can be got at, with the keys that can, by one who sees everything."""
    envs = make_vec(env_id, 1)
    envs.reset(seed=seed)
    state = envs.env_states()[0]
    grid, record, stride = state["grid"].ravel().astype(int), state["world"], state["grid"].shape[1]
    keys: set[int] = set()
    while True:
        found, seen, waiting = set(keys), {int(record["agent"])}, [int(record["agent"])]
        while waiting:
            at = waiting.pop()
            for beside in (at - 1, at + 1, at - stride, at + stride):
                cell = grid[beside]
                kind, color, door = cell & 15, cell >> 4 & 7, cell >> 7 & 3
                if beside in seen or kind in (WALL, LAVA) or (kind == DOOR and door == LOCKED and color not in keys):
                    continue
                seen.add(beside)
                waiting.append(beside)
                if kind == KEY:
                    found.add(color)
                if kind == BOX and cell >> 9 & 15 == KEY:
                    found.add(cell >> 13 & 7)
        if found == keys:
            break
        keys = found
    named = []
    for task, kind in enumerate(record["task"]):
        if kind != NO_TASK:
            named += [2 * task, 2 * task + 1] if kind == PUT_NEXT else [2 * task]
    return all(any(grid[at] >> MEMBER_SHIFT + description & 1 for at in seen) for description in named)


def test_the_naive_search_tells_what_cannot_be() -> None:
    assert can_be_carried_out("BabyAI-Unlock-v0", 0)
    assert not can_be_carried_out("BabyAI-Unlock-v0", 63)


def test_with_everything_seen_the_way_is_the_shortest() -> None:
    """`approach` against a search over positions, headings and open doors, in mazes of closed doors."""
    env_id, num_envs = "BabyAI-GoTo-v0", 24
    agent, envs = BotAgent.of(env_id), make_vec(env_id, num_envs)
    view = Viewer(envs, agent)
    raw, _ = envs.reset(seed=0)
    started, state = np.ones(num_envs, bool), dict(agent.begin(num_envs))
    shortest = [naive_length(one) for one in envs.env_states()]
    lengths = np.zeros(num_envs, int)
    state = dict(agent.act(view(raw, started), state, started, None).state)
    state["explored"][:] = 255
    for step in range(1, 200):
        acted = agent.act(view(raw, started), state, np.zeros(num_envs, bool), None)
        state = dict(acted.state)
        raw, _, terminated, _, _ = envs.step(acted.actions)
        lengths[(lengths == 0) & terminated] = step
    compared = [n for n in range(num_envs) if shortest[n] is not None]
    assert len(compared) > 16
    assert [lengths[n] for n in compared] == [max(shortest[n] or 0, 1) for n in compared]


def naive_length(state: Any) -> int | None:
    """Actions until a tracked cell of "go to" is in front; None where something has to be moved out of the way."""
    stride, cells = state["grid"].shape[1], state["grid"].ravel().astype(int)
    start = int(state["world"]["agent"]), int(state["world"]["heading"]), frozenset[int]()
    steps, lengths = (1, stride, -1, -stride), {start: 0}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        at, heading, opened = place
        front = at + steps[heading]
        if cells[front] >> TRACKED_SHIFT & 1:
            return lengths[place]
        kind, door = cells[front] & 15, cells[front] >> 7 & 3
        after = [(at, (heading + turn) % 4, opened) for turn in (1, 3)]
        if kind == EMPTY or (kind == DOOR and (door == OPEN or front in opened)):
            after.append((front, heading, frozenset()))  # a door that was walked through is not needed again
        elif kind == DOOR and door == CLOSED:
            after.append((at, heading, frozenset([front])))
        for one in after:
            if one not in lengths:
                lengths[one] = lengths[place] + 1
                waiting.append(one)
    return None


def test_what_was_not_seen_makes_no_difference() -> None:
    """Cells that no view has shown, and what is in boxes, are filled at random: the bot does the same."""
    env_id, num_envs = "BabyAI-BossLevel-v0", 60
    agent, envs = BotAgent.of(env_id), make_vec(env_id, num_envs)
    view = Viewer(envs, agent)
    raw, _ = envs.reset(seed=3)
    rng, started, state = np.random.default_rng(0), np.ones(num_envs, bool), dict(agent.begin(num_envs))
    hidden = 0
    for _ in range(40):
        views = view(raw, started)
        acted = agent.act(views, state, started, None)
        seen = np.unpackbits(acted.state["explored"], axis=1, bitorder="little")
        assert views.env_state is not None
        grids = views.env_state["grid"].reshape(num_envs, -1)
        cells = rng.integers(0, 2**28, grids.shape) << 4 | rng.choice([EMPTY, WALL, DOOR, KEY, BALL, BOX], grids.shape)
        cells = cells.astype(np.uint32)
        unseen = seen[:, : grids.shape[1]] == 0
        hidden += unseen.sum()
        grids[unseen] = cells[unseen]
        boxes = ~unseen & (grids & 15 == BOX)
        grids[boxes] ^= cells[boxes] & 0b1111111 << 9
        assert (agent.act(views, state, started, None).actions == acted.actions).all()
        raw, _, terminated, truncated, _ = envs.step(acted.actions)
        state, started = dict(acted.state), terminated | truncated
    assert hidden > 100_000


def test_moving_by_chance_it_knows_its_own_map_alone() -> None:
    """It looked at the terrain of the env before it in the batch, so that episodes depended on how many ran at once."""
    env_id, num_envs = "BabyAI-GoToImpUnlock-v0", 16
    agent, envs = BotAgent.of(env_id), make_vec(env_id, num_envs)
    views, _ = envs.reset(seed=0)
    rng, started, memory = np.random.default_rng(0), np.ones(num_envs, bool), agent.bot.begin(num_envs)

    def act(these: slice) -> NDArray[np.int64]:
        copies = {name: part[these].copy() for name, part in memory.items()}
        return agent.bot.act(envs.env_states()[these], views[these], copies, started[these])

    went = 0
    for _ in range(30):
        agent.bot.act(envs.env_states(), views, memory, started)  # now nothing is new
        started[:], memory["idle"][:] = False, 20 * 16 + 3
        together = act(slice(None))
        assert together.tolist() == [int(act(slice(n, n + 1))[0]) for n in range(num_envs)]
        went += (together == FORWARD).sum()
        views, _, terminated, truncated, _ = envs.step(rng.integers(0, 3, num_envs))
        started = terminated | truncated
    assert went > 30


def test_it_goes_on_from_wherever_chance_has_led() -> None:
    """Half of the actions are any action: boxes are opened, keys laid down anywhere, doors closed again."""
    episodes = played(BotAgent.of("BabyAI-BossLevelNoUnlock-v0", epsilon=0.5), 40)
    assert np.mean([one.success for one in episodes]) > 0.7
    assert min(one.length for one in episodes) > 0


def test_where_nothing_can_be_done_it_moves_by_chance_until_the_end() -> None:
    (episode,) = played(BotAgent.of("BabyAI-Unlock-v0"), 1, seed=63)
    assert (episode.success, episode.truncated, episode.length) == (False, True, 576)


def test_where_the_action_that_is_needed_is_left_out_it_takes_another() -> None:
    """Before an object it took one that is none of the env's actions: an IndexError ended the run."""
    episodes = played(BotAgent.of("BabyAI-PickupLoc-v0@actions=restricted,max_steps=60"), 8)
    assert {(one.success, one.length) for one in episodes} == {(False, 60)}


def test_a_place_to_lay_something_down_is_not_sought_at_the_other_end_of_the_level() -> None:
    """What is in the way lies in a narrow place: the nearest spot that is in nobody's way is 40 steps off."""
    (episode,) = played(BotAgent.of("BabyAI-SynthS5R2-v0"), 1, seed=84)
    assert episode.success


def test_a_map_that_is_too_large_is_refused() -> None:
    agent, envs = BotAgent.of("BabyAI-GoToObj-v0"), make_vec("BabyAI-GoToObj-v0", 1)
    views = Viewer(envs, agent)(envs.reset(seed=0)[0], np.ones(1, bool))
    large = np.zeros(1, [("world", views.env_state.dtype["world"]), ("grid", np.uint32, (MAX_CELLS, 2))])  # type: ignore
    with pytest.raises(UsageError, match="too large for the bot"):
        agent.bot.act(large, views.symbols, dict(agent.begin(1)), np.ones(1, bool))
