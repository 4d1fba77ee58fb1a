"""The grammar of missions: by hand, over all it can say, and on levels of PyPI minigrid."""

import gymnasium
import minigrid  # noqa: F401  registers its levels
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkrl.core.errors import InputError
from bkrl.envs.babyai.constants import COLOR_NAMES
from bkrl.envs.babyai.grammar import NOUNS, PLACES, Mission, Task, Thing, read_mission

LEVELS = ["GoToLocal", "PickupLoc", "PutNextLocal", "OpenDoorLoc", "OpenDoorsOrderN4", "GoToSeqS5R2", "MiniBossLevel"]

THINGS = st.builds(
    Thing, st.sampled_from(["the", "a"]), st.sampled_from(["", *COLOR_NAMES]), st.sampled_from(NOUNS),
    st.sampled_from(["", *PLACES]),
)  # fmt: skip
TASKS = st.builds(Task, st.sampled_from(["go to", "pick up", "open"]), THINGS) | st.builds(
    Task, st.just("put"), THINGS, THINGS
)
CLAUSES = st.lists(TASKS, min_size=1, max_size=2).map(tuple)
MISSIONS = st.builds(Mission, CLAUSES) | st.builds(Mission, CLAUSES, st.sampled_from(["then", "after"]), CLAUSES)


def test_missions_by_hand():
    key, ball = Thing("a", "grey", "key"), Thing("the", "yellow", "ball")
    assert read_mission("pick up a grey key, then go to the yellow ball") == Mission(
        (Task("pick up", key),), "then", (Task("go to", ball),)
    )
    assert read_mission("open the door after you put a box behind you next to the yellow ball") == Mission(
        (Task("open", Thing("the", "", "door")),),
        "after",
        (Task("put", Thing("a", "", "box", "behind you"), ball),),
    )
    assert read_mission("go to the yellow ball and pick up a grey key").tasks == (
        Task("go to", ball),
        Task("pick up", key),
    )


@given(MISSIONS)
def test_every_mission_is_read_back(mission):
    assert read_mission(str(mission)) == mission


@pytest.mark.parametrize("level", LEVELS)
def test_missions_of_real_levels_keep_their_words(level):
    env = gymnasium.make(f"BabyAI-{level}-v0").unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        assert str(read_mission(env.mission)) == env.mission


@pytest.mark.parametrize(
    "text",
    ["", "go to the", "go to red ball", "go to the red wall", "put the key", "go to the ball and", "Go to the ball",
     "use the key to open the door and then get to the goal", "go to the ball, then open a door, then open a door"],
)  # fmt: skip
def test_other_sentences_are_refused(text):
    with pytest.raises(InputError, match="is no mission of BabyAI"):
        read_mission(text)
