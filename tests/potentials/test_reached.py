"""Goals that an episode has reached: which fields of its memory goals mean, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest

from bkrl.core.errors import InputError
from bkrl.data.dataset import Dataset
from bkrl.envs import memory_of
from bkrl.potentials.goal.reached import Reached, measure
from bkrl.potentials.kinds import Shuffle
from bkrl.runs.samples import SAMPLES
from bkrl.text.encoders import fit_encoder

GOALS = ["go to the red ball", "pick up the blue key", "unlock the yellow door", "find a way out"]


def test_a_field_is_worth_half_where_it_should_be_and_more_each_time_but_less_than_the_last() -> None:
    reached = Reached(("cells", "keys", "doors"), (1, 2), (1.0, 3.0))
    counts = np.array([[9, 0, 0], [0, 1, 0], [0, 2, 0], [0, 3, 0], [0, 1, 3], [0, 255, 255]], np.uint8)
    assert np.allclose(reached(counts), [0, 1 / 4, 1 / 3, 3 / 8, 1 / 2, (255 / 256 + 255 / 258) / 2], atol=1e-15)
    assert reached.names == ["keys", "doors"]


@pytest.mark.parametrize(
    ("fields", "half"), [((), ()), ((3,), (1.0,)), ((-1,), (1.0,)), ((0,), (0.5,)), ((0, 1), (1.0,))]
)
def test_what_does_not_fit_is_refused(fields: tuple[int, ...], half: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="fields"):
        Reached(("cells", "keys", "doors"), fields, half)


@pytest.mark.parametrize(
    ("sample", "goals", "wanted"),
    [
        ("data-minigrid", GOALS, ["doors_unlocked", "keys_picked_up"]),
        ("data-minigrid", ["open the green door", "explore the room"], ["cells_visited", "doors_opened"]),
        (
            "data-crafter",
            ["collect wood from a tree", "make a stone pickaxe", "craft an iron sword", "sleep", "find trees"],
            ["collect_wood", "make_iron_sword", "make_stone_pickaxe", "wake_up"],
        ),
    ],
)
def test_goals_mean_the_fields_that_are_called_like_them(sample: str, goals: list[str], wanted: list[str]) -> None:
    data = Dataset.open(SAMPLES / sample)
    memory = memory_of(data.env_id)
    assert memory is not None
    assert len(memory.goals) == len(memory.names)
    found = measure(goals, fit_encoder("hash", data.caption_texts, goals), data, memory.names)
    assert sorted(found.names) == wanted
    assert found == measure(goals[::-1], fit_encoder("hash", data.caption_texts, goals), data, memory.names)


def test_half_the_worth_is_where_the_middle_episode_ended_that_did_such_a_thing() -> None:
    data = Dataset.open(SAMPLES / "data-minigrid")
    goals = ["explore the room"]
    found = measure(goals, fit_encoder("hash", goals), data, memory_of(data.env_id).names)  # type: ignore[union-attr]
    last = [int(data.memory[data.first_row[e] + data.lengths[e], 0]) for e in range(data.num_episodes)]  # type: ignore[index]
    assert found.half == (float(np.median([one for one in last if one > 0])),)
    assert found(np.array([[round(found.half[0]), *[0] * 8]], np.uint8)) == pytest.approx(0.5, abs=0.02)


def test_a_control_draws_as_many_fields_whatever_the_goals_mean() -> None:
    data = Dataset.open(SAMPLES / "data-minigrid")
    names = memory_of(data.env_id).names  # type: ignore[union-attr]
    encoder = fit_encoder("hash", GOALS)
    drawn = [measure(GOALS, encoder, data, names, Shuffle(seed)).fields for seed in range(30)]
    assert all(len(set(fields)) == 2 and list(fields) == sorted(fields) for fields in drawn)
    assert {field for fields in drawn for field in fields} == set(range(len(names)))
    assert drawn == [measure(GOALS[::-1], encoder, data, names, Shuffle(seed)).fields for seed in range(30)]


def test_goals_that_memory_does_not_count_are_refused() -> None:
    data = Dataset.open(SAMPLES / "data-minigrid")
    with pytest.raises(InputError, match="None of the 2 goals .* pick up a key"):
        measure(["win the game", "be good"], fit_encoder("hash", ["x"]), data, memory_of(data.env_id).names)  # type: ignore[union-attr]


def test_a_share_of_the_control_keeps_the_rest_of_the_fields_that_goals_mean() -> None:
    data = Dataset.open(SAMPLES / "data-minigrid")
    names = memory_of(data.env_id).names  # type: ignore[union-attr]
    encoder = fit_encoder("hash", GOALS)
    meant = set(measure(GOALS, encoder, data, names).fields)
    for seed in range(10):
        assert set(measure(GOALS, encoder, data, names, Shuffle(seed, 0.0)).fields) == meant
        half = set(measure(GOALS, encoder, data, names, Shuffle(seed, 0.5)).fields)
        assert len(half & meant) >= len(meant) - 1
        assert len(half) == len(meant)
