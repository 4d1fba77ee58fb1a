"""The bot's skill: every kind of mission and of room."""

import numpy as np
import pytest

from bkrl.agents.bot import BotAgent
from bkrl.agents.play import play
from bkrl.envs import make_vec

SPEC = {"goto": 5.3, "pickup": 6.3, "open": 15.3, "putnext": 12.1, "seq": 11.9}
"""The mean lengths of the published bot's episodes on GLAM's training level."""


@pytest.mark.parametrize("kind", [*SPEC])
def test_every_mission_of_glam_is_carried_out_and_no_slower_than_by_the_published_bot(kind: str) -> None:
    envs = make_vec("BabyAI-MixedTrainLocal-v0", 128, task_kinds=kind)
    episodes = list(play(BotAgent.of("BabyAI-MixedTrainLocal-v0"), envs, 300, seed=0))
    assert all(episode.success for episode in episodes)
    assert np.mean([episode.length for episode in episodes]) < 1.1 * SPEC[kind]
