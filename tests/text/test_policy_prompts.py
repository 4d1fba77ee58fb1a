"""Prompts of policies, byte for byte, by hand from the published layouts."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkrl.core.errors import InputError
from bkrl.data.views import Views
from bkrl.envs import env_spec
from bkrl.envs.babyai.constants import ACTION_SETS
from bkrl.text.language import french_actions
from bkrl.text.policy_prompts import FRENCH, balrog, glam, lamorel, prompts
from bkrl.text.wording import Wording

ACTIONS = ACTION_SETS["restricted"]
FIRST = ("You see a wall 3 steps forward", "You see a purple ball 3 steps left")
SECOND = ("You carry a grey key",)
HEAD = "Possible action of the agent: turn left, turn right, go forward \n Goal of the agent: go to the purple ball"


def objects(*values):
    return np.fromiter(values, object, len(values))


def history(*steps, observations=3):
    """Of one agent: captions and, between them, numbers of actions of `ACTIONS`."""
    *past, present = [steps[i : i + 2] for i in range(0, len(steps), 2)]
    turns = [None] * observations + [(text, ACTIONS[action]) for text, action in past]
    window = objects(*turns[len(turns) - observations + 1 :])[None]
    return Views(np.zeros((1, 1), np.uint8), text=objects(present[0]), history=window)


def one(form, views, mission="go to the purple ball", actions=ACTIONS, **options):
    facts = replace(env_spec("BabyAI-GoToLocal-v0"), action_names=tuple(actions))
    worded = Wording(**options).of(facts)
    [prompt], index = prompts(form, replace(views, mission=objects(worded.mission(mission))), worded)
    assert index.tolist() == [0]
    return prompt


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (
            [(FIRST, "")],
            HEAD + " \n Observation 0: You see a wall 3 steps forward, You see a purple ball 3 steps left, "
            "\n Action 0: ",
        ),
        (
            [(FIRST, "turn left"), (SECOND, "")],
            HEAD + " \n Observation 0: You see a wall 3 steps forward, You see a purple ball 3 steps left, "
            "\n Action 0: turn left \n Observation 1: You carry a grey key, \n Action 1: ",
        ),
        (
            [(SECOND, "turn left"), ((), "go forward"), (SECOND, "")],
            HEAD + " \n Observation 0: You carry a grey key, \n Action 0: turn left \n Observation 1: "
            "\n Action 1: go forward \n Observation 2: You carry a grey key, \n Action 2: ",
        ),
    ],
)
def test_the_prompt_of_glam(turns, expected):
    assert glam(turns, "go to the purple ball", ACTIONS) == expected


def test_the_prompt_of_glam_in_french():
    names = french_actions(ACTIONS)
    assert glam([(("Tu vois un mur à 1 pas devant",), "")], "aller à la balle rouge", names, FRENCH) == (
        "Actions possibles pour l'agent: tourner à gauche, tourner à droite, aller tout droit \n But de l'agent: "
        "aller à la balle rouge \n Observation 0: Tu vois un mur à 1 pas devant, \n Action 0: "
    )


def test_the_prompt_of_lamorel():
    assert lamorel([(SECOND, "turn left"), (FIRST, "")], "go to the purple ball", ACTIONS) == (
        "Goal of the agent: go to the purple ball\n"
        "Observation: You see a wall 3 steps forward, You see a purple ball 3 steps left\nAction:"
    )


def test_the_chat_of_balrog():
    chat = balrog([(FIRST, "turn left"), (SECOND, "")], "go to the purple ball", ACTION_SETS["augmented"])
    assert [role for role, _ in chat] == ["user", "user", "assistant", "user"]
    assert "Your goal: go to the purple ball." in chat[0][1]
    assert "go forward: take one step forward" in chat[0][1]
    assert "sleep: nothing happens" in chat[0][1]
    assert chat[1][1] == "Observation:\na wall 3 steps forward\na purple ball 3 steps left"
    assert chat[2][1] == "turn left"
    assert chat[3][1].startswith("Current observation:\nYou carry a grey key\n\n")
    assert chat[3][1].endswith("\nAction:")
    assert "drop" not in balrog([(FIRST, "")], "go to the purple ball", ACTIONS)[0][1]


def test_what_actions_do_is_said_where_they_are_babyais():
    """Crafter's `noop` was told to turn left, and that its tools do nothing."""
    worded = Wording().of(env_spec("Crafter-Text-EatCow"))
    chat = balrog([(("You face left",), "")], "eat a cow", worded.action_names, worded.labels)
    assert "\nnoop\nmove left\n" in chat[0][1]
    assert "\nmake iron sword\n" in chat[0][1]
    assert "turn" not in chat[0][1]
    assert "nothing happens" not in chat[0][1]


@pytest.mark.parametrize("env_id", ["MiniGrid-GoToDoor-5x5-v0", "MiniGrid-GoToObject-6x6-N2-v0@max_steps=9"])
def test_the_action_that_ends_an_episode_is_not_said_to_do_nothing(env_id):
    """It was "do nothing", which it is elsewhere."""
    for language, name, idle in (("en", "done", "nothing happens"), ("fr", "terminer", "rien ne se passe")):
        worded = Wording(language).of(env_spec(env_id))
        assert worded.action_names[6] == name
        chat = balrog([(("You see a wall",), "")], "go to the red door", worded.action_names, worded.labels)
        assert f"\n{name}\n" in chat[0][1]
        assert idle not in chat[0][1]
    assert Wording().of(env_spec("MiniGrid-Fetch-5x5-N2-v0")).action_names[6] == "do nothing"


def test_the_window_becomes_a_prompt():
    """Captions come with full stops; the window keeps three observations and the two actions between them."""
    with_stops = tuple(f"{sentence}." for sentence in FIRST)
    steps = (("You see nothing.",), 0, with_stops, 1, (), 2, ("You carry a grey key.",))
    turns = [(FIRST, "turn right"), ((), "go forward"), (SECOND, "")]
    assert one(glam, history(*steps)) == glam(turns, "go to the purple ball", ACTIONS)
    assert one(glam, history(*steps, observations=1)) == glam(turns[-1:], "go to the purple ball", ACTIONS)
    assert one(lamorel, history(*steps)) == lamorel(turns, "go to the purple ball", ACTIONS)
    assert one(balrog, history(*steps)) == balrog(turns, "go to the purple ball", ACTIONS)


def test_equal_prompts_are_made_once():
    missions = objects("open the door", "open the door", "open the door", "open a door")
    views = Views(np.zeros((4, 1), np.uint8), text=objects(FIRST, SECOND, FIRST, FIRST), mission=missions)
    facts = replace(env_spec("BabyAI-GoToLocal-v0"), action_names=ACTIONS)
    made, index = prompts(glam, views, Wording().of(facts))
    assert index.tolist() == [0, 1, 0, 2]
    assert made == [
        glam([(sentences, "")], mission, ACTIONS)
        for sentences, mission in ((FIRST, "open the door"), (SECOND, "open the door"), (FIRST, "open a door"))
    ]


def test_everything_in_french():
    seen = ("Tu portes une boîte grise.", "Tu vois une porte bleue fermée à clef 1 pas devant.")
    mission = "open the blue door after you pick up the box"
    prompt = one(glam, history(seen), mission, language="fr", words="invented-nouns", goal_label="agent")
    assert prompt == (
        "Actions possibles pour l'agent: tourner à gauche, tourner à droite, aller tout droit \n Tu dois faire: ouvrir "
        "la porte bleue après avoir attrapé l'afze \n Observation 0: Tu portes une boîte grise, Tu vois une porte "
        "bleue fermée à clef 1 pas devant, \n Action 0: "
    )
    chat = one(balrog, history(seen), "go to a ball", language="fr")
    assert chat[-1][1].splitlines()[1:3] == [
        "Tu portes une boîte grise",
        "une porte bleue fermée à clef 1 pas devant",
    ]
    assert "Ton but : aller à une balle." in chat[0][1]
    with pytest.raises(InputError, match="is no mission of BabyAI"):
        one(glam, history(seen), "place a table", language="fr")


def test_other_labels_of_the_goal():
    assert " \n You have to: go to the purple ball \n " in one(glam, history(FIRST), goal_label="agent")
    assert " \n You have to: go to the purple ball \n " in one(glam, history((), 0, FIRST), goal_label="You have to")


def test_the_program_in_the_documents_prints_a_prompt():
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "policy_prompts" in block]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " \n Goal of the agent: go to the red table \n Observation 0: You " in done.stdout
    assert done.stdout.endswith("\n Action 0: \n")
