"""The finer points of minigrid's verifiers, each played out by hand on the kernels and on minigrid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from minigrid.core.world_object import Ball, Box, Door, Key, WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    AndInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from bkrl.envs import mission_is_hidden
from bkrl.envs.babyai.constants import DONE, DROP, LEFT, PICKUP, RIGHT, TOGGLE
from bkrl.envs.babyai.kernels import step_envs
from bkrl.envs.babyai.loading import Inexpressible, load, why_not
from bkrl.envs.babyai.state import ENV, MARGIN, WALL_CELL

SIZE = 7
STRIDE = SIZE + 2 * MARGIN


class Stage(RoomGridLevel):
    """One room; the agent in the corner (1, 1), facing right, and what is set up before it."""

    def __init__(self, instruction: Instr, props: dict[tuple[int, int], WorldObj]) -> None:
        self.props, self.instruction = props, instruction
        super().__init__(room_size=SIZE, num_rows=1, num_cols=1)

    def gen_mission(self) -> None:
        for (x, y), thing in self.props.items():
            self.put_obj(thing, x, y)
        self.agent_pos, self.agent_dir = (1, 1), 0
        self.instrs = self.instruction


def perform(instruction: Instr, props: dict[tuple[int, int], WorldObj], actions: list[int]) -> list[str]:
    """Play the actions on both sides, compare, and say what each step came to."""
    env = Stage(instruction, props)
    env.reset(seed=0)
    grids = np.full((1, STRIDE * STRIDE), WALL_CELL, np.uint32)
    envs = np.zeros(1, ENV)
    load(env, grids[0].reshape(STRIDE, STRIDE), envs[0])
    views, rewards = np.zeros((1, 147), np.uint8), np.zeros(1, np.float32)
    terminated, truncated = np.zeros(1, bool), np.zeros(1, bool)
    story = []
    for action in actions:
        outs = (views, views.copy(), rewards, terminated, truncated, np.zeros(1, bool))
        step_envs(grids, envs, np.array([action]), np.zeros(1, bool), None, STRIDE, *outs, 0, 1)
        observation, reward, done, cut, _ = env.step(action)
        np.testing.assert_array_equal(views.reshape(7, 7, 3), observation["image"])
        assert (rewards[0], terminated[0], truncated[0]) == (np.float32(reward), done, cut)
        story.append("success" if done and reward > 0 else "failure" if done else "on")
    return story


def red(kind: str = "ball") -> ObjDesc:
    return ObjDesc(kind, "red")


def blue(kind: str = "box") -> ObjDesc:
    return ObjDesc(kind, "blue")


def test_going_to_where_an_object_was() -> None:
    """Positions are looked up again only after a drop: the empty cell a ball was taken from still counts."""
    props: dict[tuple[int, int], WorldObj] = {(2, 1): Ball("red"), (1, 2): Box("blue")}
    mission = BeforeInstr(GoToInstr(blue()), GoToInstr(red()))
    assert perform(mission, props, [PICKUP, RIGHT, LEFT]) == ["on", "on", "success"]
    props = {(2, 1): Ball("red"), (1, 2): Box("blue")}
    mission = BeforeInstr(GoToInstr(blue()), GoToInstr(red()))
    # A drop, even a vain one, makes it look again: the old place counts no more, and the new one does.
    story = perform(mission, props, [PICKUP, LEFT, LEFT, LEFT, DROP, LEFT, DROP])
    assert story == ["on"] * 6 + ["success"]


def test_a_box_destroyed_still_counts_until_a_drop() -> None:
    mission = BeforeInstr(GoToInstr(red()), GoToInstr(blue()))
    props: dict[tuple[int, int], WorldObj] = {(2, 1): Box("blue"), (1, 2): Ball("red")}
    assert perform(mission, props, [TOGGLE, RIGHT, LEFT]) == ["on", "on", "success"]
    mission = BeforeInstr(GoToInstr(red()), GoToInstr(blue()))
    props = {(2, 1): Box("blue"), (1, 2): Ball("red")}
    assert perform(mission, props, [TOGGLE, DROP, RIGHT, LEFT]) == ["on"] * 4


def test_picking_up_needs_empty_hands_when_asked() -> None:
    """The box is taken before its turn comes; then it must be laid down and taken again."""
    props: dict[tuple[int, int], WorldObj] = {(2, 1): Box("blue"), (1, 2): Ball("red")}
    mission = BeforeInstr(GoToInstr(red()), PickupInstr(blue()))
    story = perform(mission, props, [PICKUP, RIGHT, PICKUP, LEFT, PICKUP, DROP, PICKUP])
    assert story == ["on"] * 6 + ["success"]


def test_a_verifier_first_asked_believes_the_hands_empty() -> None:
    """The drop that ends the first part is offered to the second, which has not seen what was carried."""
    props: dict[tuple[int, int], WorldObj] = {(2, 1): Box("blue"), (1, 3): Ball("red")}
    mission = BeforeInstr(PutNextInstr(blue(), red()), PutNextInstr(blue(), red()))
    assert perform(mission, props, [PICKUP, RIGHT, DROP, PICKUP, DROP]) == ["on"] * 4 + ["success"]


def test_the_same_action_counts_for_both_parts() -> None:
    props: dict[tuple[int, int], WorldObj] = {(2, 1): Ball("red")}
    for sequence in (BeforeInstr, AfterInstr):
        mission = sequence(GoToInstr(red()), GoToInstr(red()))
        assert perform(mission, {(2, 1): Ball("red")}, [DONE]) == ["success"]
    assert perform(AndInstr(GoToInstr(red()), PickupInstr(red())), props, [PICKUP]) == ["success"]


@pytest.mark.parametrize(("place", "outcome"), [((1, 3), "success"), ((2, 3), "on")])
def test_put_next_is_not_diagonal(place: tuple[int, int], outcome: str) -> None:
    props: dict[tuple[int, int], WorldObj] = {(2, 1): Key("blue"), place: Ball("red")}
    assert perform(PutNextInstr(blue("key"), red()), props, [PICKUP, RIGHT, DROP]) == ["on", "on", outcome]


def test_doors_keys_and_strictness() -> None:
    locked = {(2, 1): Key("blue"), (1, 2): Door("blue", is_locked=True)}
    mission = OpenInstr(ObjDesc("door"))
    assert perform(mission, dict(locked), [RIGHT, TOGGLE, LEFT, PICKUP, RIGHT, TOGGLE]) == ["on"] * 5 + ["success"]
    doors: dict[tuple[int, int], WorldObj] = {(2, 1): Door("red"), (1, 2): Door("blue", is_open=True)}
    assert perform(OpenInstr(red("door"), strict=True), dict(doors), [RIGHT, TOGGLE]) == ["on", "failure"]
    doors = {(2, 1): Door("red"), (1, 2): Door("blue")}
    assert perform(OpenInstr(red("door"), strict=True), doors, [TOGGLE]) == ["success"]
    things: dict[tuple[int, int], WorldObj] = {(2, 1): Key("blue"), (1, 2): Ball("red")}
    assert perform(PickupInstr(red(), strict=True), dict(things), [PICKUP]) == ["failure"]
    things = {(2, 1): Key("blue"), (1, 2): Ball("red")}
    assert perform(PutNextInstr(red(), blue("key"), strict=True), things, [PICKUP]) == ["failure"]


def test_what_is_in_a_box_is_not_meant() -> None:
    """A red ball that comes out of a box is not one the mission spoke of, nor is a box dropped on a door."""
    props: dict[tuple[int, int], WorldObj] = {
        (2, 1): Box("grey", Ball("red")),
        (5, 5): Ball("red"),
        (1, 2): Door("red"),
    }
    story = perform(PickupInstr(red()), props, [TOGGLE, PICKUP, RIGHT, DROP, TOGGLE, DROP, LEFT, DROP])
    assert story == ["on"] * 8


def test_what_cannot_be_expressed_is_said() -> None:
    class Odd(Ball):
        pass

    def reason(instruction: Instr, thing: WorldObj) -> Any:
        return why_not(Stage(instruction, {(3, 3): thing, (2, 4): Ball("red")}))

    assert reason(GoToInstr(red()), Odd("grey")) == "it has the object Odd"
    assert reason(GoToInstr(red()), Box("grey", Box("grey", Key()))) == "it has a box with more than one thing in it"
    assert reason(BeforeInstr(GoToInstr(red()), GoToInstr(red()), strict=True), Key()) == "it has a strict sequence"
    assert (
        reason(GoToInstr(red()), Door("red", is_open=True, is_locked=True)) == "it has a door that is open and locked"
    )
    assert reason(GoToInstr(red()), Key()) is None
    assert issubclass(Inexpressible, Exception)


@pytest.mark.parametrize(
    ("env_id", "vary"),
    [
        ("BabyAI-Text-GoToLocal-RedBall-S20", False),
        ("BabyAI-Text-GoTo-RedBallBlueBox-S20", False),
        ("BabyAI-Text-GoToLocal-Pretraining-S20", True),
        ("BabyAI-GoToLocal-v0", True),
        ("BabyAI-GoToRedBall-v0", False),
        ("MiniGrid-DoorKey-6x6-v0", False),
        ("MiniGrid-Fetch-5x5-N2-v0", True),
        ("Toy-Grid", False),
        ("Crafter-Text-PlaceCraftingTable", False),
    ],
)
def test_envs_whose_missions_change_are_known(env_id: str, vary: bool) -> None:
    assert mission_is_hidden(env_id) is vary
