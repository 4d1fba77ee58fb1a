"""High-level control recalls what it sees and how far it walks: the same as if it looked and measured each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bkrl.core.jit import kernel
from bkrl.envs import make_vec
from bkrl.envs.housekeep.acting import way_to
from bkrl.envs.housekeep.sight import look

ENVS = 64


@kernel
def look_afresh(envs: Any, things: Any, squares: Any, house: Any) -> None:
    for n in range(len(envs)):
        look(envs[n], things[n], squares[n], house)


@kernel
def way_afresh(house: Any, x: float, z: float, to: int) -> Any:
    return way_to(house, x, z, to)


@pytest.fixture(scope="module")
def envs() -> Any:
    envs: Any = make_vec("Housekeep-Symbolic-Original@scene=Pomaria_2_int,control=high,things=all,length=100000", ENVS)
    envs.reset(seed=0)
    return envs


def test_what_is_recalled_is_what_a_look_shows(envs: Any) -> None:
    engine, rng = envs.engine, np.random.default_rng(0)
    house, moves = engine.houses[0], 0
    for _ in range(40):
        records, things, squares = engine.envs.copy(), engine.things.copy(), engine.squares.copy()
        _, _, terminated, truncated, _ = envs.step(rng.integers(0, len(envs.env_spec.action_names), ENVS))
        assert not (terminated | truncated).any()
        wanted, found = engine.envs.copy(), engine.things.copy()
        moves += int((wanted["at"] != records["at"]).sum())
        for field in ("receptacles", "squares_seen"):
            wanted[field] = records[field]
        for field in ("seen", "seen_on"):
            found[field] = things[field]
        look_afresh(wanted, found, squares, house)
        np.testing.assert_array_equal(engine.envs["receptacles"], wanted["receptacles"])
        np.testing.assert_array_equal(engine.envs["squares_seen"], wanted["squares_seen"])
        np.testing.assert_array_equal(engine.squares, squares)
        for field in ("seen", "seen_on"):
            np.testing.assert_array_equal(engine.things[field], found[field])
    assert moves > 1000


def test_the_ways_from_where_episodes_start_are_the_shortest(envs: Any) -> None:
    engine = envs.engine
    house, (views,) = engine.houses[0], engine.views
    for number in range(0, len(engine.table), len(engine.table) // 10):
        start = engine.table[number]
        for receptacle in range(len(house.low)):
            to = len(house.places) - len(house.low) + receptacle
            length, first = way_afresh(house, start["x"], start["z"], to)
            assert (views.away[number, receptacle], views.first[number, receptacle]) == (length, first)
