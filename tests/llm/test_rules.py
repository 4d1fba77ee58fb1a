"""The rules annotator, judged on cases a person has decided, through the very prompts a language model would get."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from bkrl.envs.babyai.constants import ACTION_NAMES, ACTION_SETS
from bkrl.labelers.answers import parse_choice, parse_goals, parse_program
from bkrl.labelers.code import code_prompt
from bkrl.labelers.goals import goal_prompt
from bkrl.labelers.material import EnvCard, SegmentText
from bkrl.labelers.preferences import pair_prompt
from bkrl.llm import open_backend
from bkrl.llm.protocol import Fault, Message, Request
from bkrl.llm.rules import answer, babyai, crafter
from bkrl.llm.rules.babyai import SeenThing
from bkrl.llm.rules.segment import ReadSegment

BABYAI = EnvCard("BabyAI-X", "babyai", ("left", "right", "forward", "pickup", "drop", "toggle", "done"))
CRAFTER = EnvCard("Crafter-X", "crafter", ("noop", "move_left", "do"))


def prefer(card: EnvCard, a: SegmentText, b: SegmentText) -> str:
    """What the annotator says; the swapped question must be answered consistently."""
    there = parse_choice(answer([text for _, text in pair_prompt(card, a, b)]))
    back = parse_choice(answer([text for _, text in pair_prompt(card, b, a)]))
    assert {"A": "B", "B": "A", "tie": "tie"}[str(there)] == back
    return str(there)


def walk(*steps: str) -> SegmentText:
    """Captions and actions in turn."""
    return SegmentText(tuple(f"You see {text}." if text else "You see nothing." for text in steps[::2]), steps[1::2])


BALL = "a red ball {} forward"
APPROACH = walk(BALL.format("3 steps"), "forward", BALL.format("2 steps"), "forward", BALL.format("1 step"))
RETREAT = walk(BALL.format("3 steps"), "right", "a wall 3 steps right", "right", "")
STARE = walk(BALL.format("3 steps"), "done", BALL.format("3 steps"), "done", BALL.format("3 steps"))
BUMP = walk("a wall 1 step forward", "forward", "a wall 1 step forward", "forward", "a wall 1 step forward")
EMPTY = walk("a wall 5 steps forward", "forward", "a wall 4 steps forward", "forward", "a wall 3 steps forward")
DITHER = walk("a wall 5 steps forward", "left", "", "right", "a wall 5 steps forward")
GRAB_NOTHING = walk("a wall 5 steps forward", "pickup", "a wall 5 steps forward", "toggle", "a wall 5 steps forward")
FIND = walk(
    "a wall 5 steps forward", "left", "a blue key 2 steps left and 4 steps forward", "left", "a blue key 4 steps right"
)
TAKE = SegmentText(
    ("You see a red ball 1 step forward.", "You carry a red ball. You see a wall 3 steps forward."), ("pickup",)
)
OPEN = walk("a closed red door 1 step forward", "toggle", "an open red door 1 step forward", "forward", "")
LAVA = walk("lava 1 step forward", "forward", "lava 1 step forward", "forward", "lava 1 step forward")


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (APPROACH, RETREAT),
        (APPROACH, STARE),
        (APPROACH, EMPTY),
        (EMPTY, BUMP),
        (EMPTY, DITHER),
        (EMPTY, GRAB_NOTHING),
        (FIND, EMPTY),
        (FIND, DITHER),
        (TAKE, GRAB_NOTHING),
        (OPEN, BUMP),
        (OPEN, EMPTY),
        (BUMP, LAVA),
    ],
    ids=range(12),
)
def test_babyai_pairs_a_person_decided(better: SegmentText, worse: SegmentText) -> None:
    assert prefer(BABYAI, better, worse) == "A"


@pytest.mark.parametrize("names", ACTION_SETS.values(), ids=ACTION_SETS)
def test_actions_of_other_names_are_judged_alike(names: tuple[str, ...]) -> None:
    """Nothing counted as a step or as waste where forward is called go forward."""
    for segment in (APPROACH, RETREAT, STARE, BUMP, DITHER, GRAB_NOTHING, TAKE, OPEN, LAVA):
        if {ACTION_NAMES.index(name) for name in segment.actions} <= set(range(len(names))):
            renamed = tuple(names[ACTION_NAMES.index(name)] for name in segment.actions)
            read = ReadSegment(segment.captions, segment.actions)
            assert babyai.judge(replace(read, actions=renamed)) == babyai.judge(read)


def test_babyai_pairs_without_a_difference_are_ties() -> None:
    assert prefer(BABYAI, EMPTY, EMPTY) == "tie"
    green = SegmentText(tuple(text.replace("red ball", "green key") for text in APPROACH.captions), APPROACH.actions)
    assert prefer(BABYAI, APPROACH, green) == "tie", "no colour and no kind is worth more than another"


def test_babyai_captions_are_understood() -> None:
    view = babyai.understand(
        "You carry a red key. You see a wall 3 steps forward. You see a wall 2 steps left. You see an open red "
        "door 1 step left and 2 steps forward. You see a grey box 4 steps right. You see lava 1 step forward."
    )
    assert view.carries == "red key"
    assert view.walls == (("forward", 3), ("left", 2))
    assert view.things[0] == SeenThing("door", "red", "open", -1, 2)
    assert view.things[1] == SeenThing("box", "grey", "", 4, 0)
    assert view.front == "lava"
    assert SeenThing("ball", "red", "", 0, 1).cost == 0
    assert SeenThing("ball", "red", "", -2, 3).cost == 5
    assert babyai.understand("You see nothing.").closeness() == 0.0


def test_babyai_goals_name_what_is_in_view_and_no_numbers() -> None:
    segment = walk("", "left", "a red ball 2 steps forward. You see a closed blue door 1 step left")
    goals = parse_goals(answer([text for _, text in goal_prompt(BABYAI, segment)]))
    assert isinstance(goals, list)
    assert {"go to the red ball", "pick up the red ball", "open the blue door"} <= set(goals)
    assert not any(character.isdigit() for goal in goals for character in goal)


def test_a_locked_door_is_to_be_unlocked_where_a_key_is_carried_and_what_was_done_is_said() -> None:
    before = "You see a locked blue door 1 step left."
    after = f"You carry a blue key. {before}"
    card = replace(BABYAI, memory=("keys_picked_up",))
    for caption, done, wanted in (
        (after, ("nothing", "keys_picked_up 1"), "unlock the blue door"),
        (before, ("nothing", "nothing"), "open the blue door"),
        (after, (), "open the blue door"),  # labels made without memory stay as they were
    ):
        segment = SegmentText((caption, caption), ("left",), done=done)
        assert wanted in parse_goals(answer([text for _, text in goal_prompt(card, segment)]))


def state(see: str = "grass 1 step up", face: str = "grass", carry: str = "nothing", vitals: str = "9999") -> str:
    health, food, drink, energy = vitals
    return (
        f"You face up, towards {face}. You see {see}. Health {health}/9, food {food}/9, drink {drink}/9, energy "
        f"{energy}/9. You carry {carry}."
    )


def crafter_walk(*steps: str) -> SegmentText:
    return SegmentText(steps[::2], steps[1::2])


CHOP = crafter_walk(state("a tree 1 step up", "a tree"), "do", state("a tree 1 step up", "a tree", "1 wood"))
CLEAR = crafter_walk(state("a tree 1 step up", "a tree"), "do", state(carry="1 wood"))
STAND = crafter_walk(state("a tree 1 step up", "a tree"), "noop", state("a tree 1 step up", "a tree"))
WAIT = crafter_walk(state(), "noop", state())
DRINK = crafter_walk(
    state("water 1 step up", "water", vitals="9939"), "do", state("water 1 step up", "water", vitals="9949")
)
THIRST = crafter_walk(
    state("water 1 step up", "water", vitals="9939"), "noop", state("water 1 step up", "water", vitals="9939")
)
PICKAXE = crafter_walk(
    state("a crafting table 1 step up", "a crafting table", "2 wood"),
    "make_wood_pickaxe",
    state("a crafting table 1 step up", "a crafting table", "1 wood and 1 wood pickaxe"),
)
FUTILE = crafter_walk(state("stone 1 step up", "stone"), "do", state("stone 1 step up", "stone"))
NEARER = crafter_walk(state("a tree 4 steps up"), "move_up", state("a tree 3 steps up"))
FARTHER = crafter_walk(state("a tree 3 steps up"), "move_down", state("a tree 4 steps up"))
HURT = crafter_walk(
    state("a zombie 1 step up", "a zombie"), "noop", state("a zombie 1 step up", "a zombie", vitals="4999")
)
TABLE = crafter_walk(state(carry="2 wood"), "place_table", state("a crafting table 1 step up", "a crafting table"))
DEAD = crafter_walk(state(), "move_up", "You are dead. You face up, towards lava. You see lava 1 step up. Health 0/9.")


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (CHOP, WAIT),
        (CHOP, FUTILE),
        (CLEAR, STAND),
        (DRINK, THIRST),
        (PICKAXE, CHOP),
        (PICKAXE, WAIT),
        (WAIT, FUTILE),
        (NEARER, FARTHER),
        (NEARER, WAIT),
        (WAIT, HURT),
        (TABLE, WAIT),
        (WAIT, DEAD),
    ],
    ids=range(12),
)
def test_crafter_pairs_a_person_decided(better: SegmentText, worse: SegmentText) -> None:
    assert prefer(CRAFTER, better, worse) == "A"


def test_crafter_captions_are_understood() -> None:
    seen = crafter.understand(
        "You are asleep, and wake when rested or hurt. You face right, towards a tree. You see grass 1 step up, a tree "
        "1 step right, water 2 steps left and 3 steps down, the edge of the world 4 steps left. It is night. Health "
        "9/9, food 7/9, drink 5/9, energy 9/9. You carry 2 wood, 1 wood pickaxe and 1 stone sword."
    )
    assert (seen.facing, seen.faced, seen.asleep, seen.night) == ("right", "tree", True, True)
    assert seen.distance == {"grass": 1, "tree": 1, "water": 5, "the edge of the world": 4}
    assert seen.vitals == {"health": 9, "food": 7, "drink": 5, "energy": 9}
    assert seen.owns == {"wood": 2, "wood pickaxe": 1, "stone sword": 1}


def test_crafter_goals_follow_the_tech_tree() -> None:
    def goals(caption: str) -> list[str]:
        found = parse_goals(answer([text for _, text in goal_prompt(CRAFTER, SegmentText((caption,), ()))]))
        assert isinstance(found, list)
        return found

    assert goals(state("a tree 2 steps up"))[0] == "collect wood from a tree"
    assert "collect iron" not in goals(state("iron 2 steps up"))
    assert "collect iron" in goals(state("iron 2 steps up", carry="1 stone pickaxe"))
    assert "make a wood pickaxe" in goals(state("a crafting table 1 step up", carry="1 wood"))
    assert goals(state(vitals="9992"))[0] == "sleep"


def test_programs_improve_by_round_and_then_stay() -> None:
    opening = [text for _, text in code_prompt(BABYAI, "L", 5, [])]
    turns, programs = list(opening), []
    for _ in range(4):
        reply = answer(turns)
        programs.append(parse_program(reply))
        turns = [*opening, reply, "The program works. Improve it."]
    assert len(set(map(str, programs))) == 3
    assert programs[-1] == programs[-2]


def test_it_is_honest_and_knows_its_limits() -> None:
    backend = open_backend("rules")
    assert "not a language model" in backend.facts()["annotator"]
    assert backend.identity is None
    unknown = Request((Message("system", "# World: Chess\n# Task: compare"), Message("user", "?")))
    with pytest.raises(Fault, match="BabyAI, Crafter, Housekeep and no other env"):
        asyncio.run(backend.complete(unknown))


def test_captions_it_cannot_read_are_refused_not_judged() -> None:
    for card, caption in ((BABYAI, "Tu vois une balle rouge 2 pas devant."), (CRAFTER, "Une prairie.")):
        french = SegmentText((caption,) * 2, ("left",))
        with pytest.raises(Fault, match="English captions only"):
            answer([text for _, text in pair_prompt(card, french, french)])


LOCKED = "You see a locked yellow door 2 steps right and 3 steps forward."
KEY = "You see a yellow key {} forward. " + LOCKED
CLOSED = KEY.replace("locked", "closed").format("1 step")
NAMED, ANY = "open the yellow door", "open the door"


@pytest.mark.parametrize(
    ("mission", "better", "worse"),
    [
        # A locked door in view: to its key first, not to the door, and not to another key.
        (mission, (KEY.format("3 steps"), "forward", KEY.format("2 steps")), (KEY.format("3 steps"), other, found))
        for mission in (NAMED, ANY)
        for other, found in (
            ("right", "You see a locked yellow door 3 steps left and 2 steps forward."),
            ("left", "You see a red key 1 step forward."),
        )
    ]
    + [
        # The key is taken; with it, to the door.
        (
            mission,
            (KEY.format("1 step"), "pickup", f"You carry a yellow key. {LOCKED}"),
            (KEY.format("1 step"), other, end),
        )
        for mission in (NAMED, ANY)
        for other, end in (("done", KEY.format("1 step")), ("left", LOCKED))
    ]
    + [
        (
            ANY,
            (f"You carry a yellow key. {LOCKED}", "forward", f"You carry a yellow key. {LOCKED.replace('3', '2')}"),
            (f"You carry a yellow key. {LOCKED}", "left", "You carry a yellow key. You see a red key 1 step forward."),
        ),
        # The door is not in view, and its key is.
        (
            NAMED,
            ("You see a yellow key 1 step forward.", "pickup", "You carry a yellow key."),
            ("You see a yellow key 1 step forward.", "left", "You see a wall 1 step left."),
        ),
        # A door that is not locked needs no key.
        (ANY, (CLOSED, "right", "You see a closed yellow door 1 step forward."), (CLOSED, "done", CLOSED)),
    ],
)
def test_a_locked_door_begins_with_its_key(mission: str, better: tuple[str, ...], worse: tuple[str, ...]) -> None:
    scores = [babyai.judge(ReadSegment((one[0], one[2]), (one[1],), mission))[0] for one in (better, worse)]
    assert scores[0] > scores[1]


def test_it_never_sees_a_task() -> None:
    """Nothing but captions and actions reaches the prompt, so the same segments give the same answer under any
    mission.
    """
    system, user = (text for _, text in pair_prompt(BABYAI, APPROACH, EMPTY))
    assert "mission" not in (system + user).lower()
    assert json.loads(answer([system, user]))["choice"] == "A"
