"""Dynamic programming on the engine, against a naive solver that copies PyPI minigrid environments."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from bkrl.envs.babyai.constants import FORWARD, GO_TO, LEFT, PICK_UP, RIGHT
from bkrl.envs.babyai.reference import make_minigrid
from bkrl.inspect.optimal import Explorer, assign, distances, first_moments, objects_of, optimal_values, walk

ENV = "BabyAI-GoToLocalS5N2-v0"
GAMMA = 0.97


def scene(env: Any) -> tuple[Any, ...]:
    """What is where, as minigrid has it."""
    carried = env.carrying and env.carrying.encode()
    return tuple(env.agent_pos), int(env.agent_dir), carried, env.grid.encode().tobytes()


def naive(env: Any, actions: range | list[int]) -> dict[tuple[Any, ...], dict[int, Any]]:
    """For every scene and action: the next scene, or True (success) or False (the episode ends without)."""
    table: dict[tuple[Any, ...], dict[int, Any]] = {}
    queue = [env]
    while queue:
        here = queue.pop()
        if scene(here) in table:
            continue
        outcomes = table[scene(here)] = {}
        for action in actions:
            after = deepcopy(here)
            after.step_count = 0
            _, reward, terminated, _, _ = after.step(action)
            outcomes[action] = reward > 0 if terminated else scene(after)
            if not terminated:
                queue.append(after)
    return table


def naive_values(table: dict, steps: int, elapsed: int) -> dict:
    """V* by recursion over the time left, in plain Python."""
    values = dict.fromkeys(table, 0.0)
    for t in range(steps - 1, elapsed - 1, -1):
        pays = 1 - 0.9 * (t + 1) / steps
        values = {
            here: max((pays if to else 0.0) if isinstance(to, bool) else GAMMA * values[to] for to in outcomes.values())
            for here, outcomes in table.items()
        }
    return values


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer(ENV)


@pytest.mark.parametrize("seed", [pytest.param(3, marks=pytest.mark.slow), 11])
def test_values_are_those_of_a_naive_solver_on_minigrid(explorer, seed):
    env = make_minigrid(ENV)
    env.reset(seed=seed)
    table = naive(env, range(7))
    states = explorer.explore(explorer.draw(seed))
    assert len(set(states.things)) == len(table)
    rng = np.random.default_rng(seed)
    for elapsed in (0, 7, 24):
        exact = optimal_values(states, GAMMA, elapsed)
        expected = naive_values(table, env.max_steps, elapsed)
        assert sorted(set(np.round(exact, 9))) == sorted({round(value, 9) for value in expected.values()})
        place, here = 0, scene(env)
        for _ in range(60):  # the same walk in both: state by state the same value
            assert exact[place] == pytest.approx(expected[here], abs=1e-12)
            action = int(rng.integers(7))
            if isinstance(table[here][action], bool):
                assert states.over[place, action]
                assert states.success[place, action] == table[here][action]
                continue
            place, here = states.next_state[place, action], table[here][action]


def test_distances_with_still_objects(explorer):
    env = make_minigrid(ENV)
    env.reset(seed=5)
    table = naive(env, [LEFT, RIGHT, FORWARD])
    states = explorer.explore(explorer.draw(5), [LEFT, RIGHT, FORWARD], still=True)
    away = dict.fromkeys(table, np.inf)
    for _ in range(40):
        away = {
            here: min(1 if to is True else 1 + away[to] for to in outcomes.values()) for here, outcomes in table.items()
        }
    once = dict(zip(states.things, distances(states), strict=True))  # a verifier that was never asked is another state
    assert sorted(once.values()) == sorted(away.values())
    assert distances(states)[0] == away[scene(env)]


def test_picking_up_is_followed_by_nothing_when_objects_are_still(explorer):
    moment = explorer.draw(4)
    still = explorer.explore(moment, still=True)
    free = explorer.explore(moment)
    assert len(still) < len(free)
    assert len({thing[3 * 8 :] for thing in still.things}) == 1


def test_every_mission_can_be_given_to_a_layout(explorer):
    moment = explorer.draw(3)
    kinds = objects_of(moment)
    assert 1 <= len(kinds) <= 2
    for kind, color in kinds:
        go, take = (explorer.explore(assign(moment, task, kind, color)) for task in (GO_TO, PICK_UP))
        # to be taken it has to be faced first
        assert distances(take)[0] == distances(go)[0] + 1
        assert 0 < optimal_values(take, GAMMA)[0] < optimal_values(go, GAMMA)[0] < 1
    with pytest.raises(ValueError, match="can be assigned"):
        assign(moment, 4, *kinds[0])


def test_too_many_states_are_no_table(explorer):
    assert explorer.explore(explorer.draw(3), limit=50) is None


def test_walks_keep_their_histories(explorer):
    states = explorer.explore(explorer.draw(3))
    met, windows = walk(states, 4, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(windows.observations[:, -1], states.observations[met])
    assert windows.valid[0].tolist() == [False] * 4 + [True]
    assert (windows.valid.sum(1) == 5).any()
    first = first_moments(states.observations[:3], 4)
    assert first.valid.sum() == 3
    np.testing.assert_array_equal(first.observations[:, -1], states.observations[:3])
