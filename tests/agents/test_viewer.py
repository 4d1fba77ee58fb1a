"""What agents read: captions, missions and the last steps, against one deque for each env."""

from collections import deque

import numpy as np
import pytest
import torch

from bkrl.agents.network import NetworkAgent
from bkrl.agents.networks import build_network
from bkrl.agents.random import RandomAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.errors import UsageError
from bkrl.data.windows import Reads
from bkrl.envs import captioner, env_spec, make_vec, sentences
from bkrl.learn.rollout import Clock, Collector
from bkrl.text.wording import Wording

LEVEL = "BabyAI-GoToLocal-v0"
NAMES = ("rotate left", "rotate right", "move ahead", "take", "release", "switch", "wait")


class Reader(RandomAgent):
    """Wants everything that can be read."""

    wants = ("text", "mission", "history")

    def __init__(self, env_id=LEVEL, wording=None, observations=3):
        facts = env_spec(env_id)
        super().__init__(env_id, facts.family, facts.action_names)
        object.__setattr__(self, "wording", wording or Wording())
        object.__setattr__(self, "observations", observations)


def stepped(envs, viewer, steps, seed=0):
    """Views and their observations of `steps` steps of random actions, with what came before each."""
    rng, N = np.random.default_rng(seed), envs.num_envs
    observations, started = envs.reset(seed=seed)[0], np.ones(N, bool)
    for _ in range(steps):
        views = viewer(observations, started)
        actions = rng.integers(0, 7, N)
        yield observations, started, views, actions
        viewer.acted(actions)
        observations, _, terminated, truncated, infos = envs.step(actions)
        started = terminated | truncated
        if started.any():
            ended = np.flatnonzero(started)
            yield infos["final_obs"][ended], None, viewer.last(infos["final_obs"], ended, views), ended


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_history_is_a_deque_for_each_env(length):
    envs = make_vec(LEVEL, 3, max_steps=9)
    viewer, read = Viewer(envs, Reader(observations=length)), sentences(LEVEL)
    past = [deque(maxlen=length - 1) for _ in range(3)]
    ends = 0
    for observations, started, views, actions in stepped(envs, viewer, 60):
        if started is None:  # what was seen last of episodes that ended comes after the action that ended them
            ends += len(actions)
            rows = list(zip(actions.tolist(), views.history.tolist(), strict=True))
        else:
            for n in np.flatnonzero(started):
                past[n].clear()
            rows = list(enumerate(views.history.tolist()))
        assert views.text.tolist() == read(observations).tolist()
        for n, row in rows:
            assert [turn for turn in row if turn is not None] == list(past[n])
            assert row[: len(row) - len(past[n])] == [None] * (length - 1 - len(past[n]))
        if started is not None:
            for n in range(3):
                past[n].append((views.text[n], viewer._worded.action_names[actions[n]]))
    assert ends > 15


def test_nothing_is_computed_that_is_not_wanted():
    envs = make_vec(LEVEL, 2)
    viewer = Viewer(envs, RandomAgent(LEVEL, "babyai", env_spec(LEVEL).action_names))
    assert viewer._worded is None
    views = viewer(envs.reset(seed=0)[0], np.ones(2, bool))
    viewer.acted(np.zeros(2, np.int64))
    assert not [one for one in views.arrays()[1:] if one is not None]


def test_an_agent_reads_its_own_wording():
    wording = Wording("fr", words="invented-nouns", actions=NAMES)
    envs = make_vec(LEVEL, 4)
    viewer, plain = Viewer(envs, Reader(wording=wording)), captioner(LEVEL, "fr")
    missions = 0
    for observations, started, views, _ in stepped(envs, viewer, 5):
        assert started is not None
        said = " ".join(" ".join(text) for text in views.text)
        assert any(noun in " ".join(plain(observations)) for noun in ("balle", "clef", "boîte"))
        assert not any(noun in said for noun in ("balle", "clef grise", "boîte"))
        for english, mission in zip(envs.missions(), views.mission, strict=True):
            missions += mission.startswith("aller à") and english.startswith("go to")
        taken = [row[-1][1] for row in views.history if row[-1]]
        assert set(taken) <= set(NAMES)
    assert missions == 20
    assert taken


@pytest.mark.parametrize(
    ("wording", "says"),
    [
        ({"actions": "restricted"}, "has 7 actions here, and 3 names are given"),
        ({"actions": "restrcted"}, "no names of actions 'restrcted'"),
        ({"language": "de"}, "no language 'de'"),
        ({"words": "noun"}, "no words 'noun'"),
    ],
)
def test_wrong_wordings_are_refused(wording, says):
    with pytest.raises(UsageError, match=says):
        Wording(**wording).of(env_spec(LEVEL))


def test_a_wording_comes_back_from_plain_values():
    wording = Wording("fr", {"key": "chair"}, ("a", "b"), "agent", frozenset({"g1"}))
    assert Wording.of_json(wording.to_json()) == wording


class TextAgent(NetworkAgent):
    """A network on symbols that also wants all that can be read."""

    wants = ("symbols", "text", "mission", "history")


def collector(seed):
    envs = make_vec(LEVEL, 4, max_steps=7)
    facts = envs.env_spec
    network = build_network(
        "compact", obs_shape=facts.obs_shape, num_actions=7, num_values=1, symbols=None, hidden=8, seed=seed
    )
    agent = TextAgent(network, LEVEL, facts.family, facts.action_names)
    return Collector(envs, agent, num_steps=6, num_values=1, reads=Reads(), seed=seed, device=torch.device("cpu"))


def test_a_rollout_has_the_history_of_every_row_and_goes_on_after_a_restart():
    one = collector(1)
    for _ in range(3):
        one.collect(Clock())
        rollout, views = one.rollout, one.views
        for t in range(1, 6):
            for n in range(4):
                turn = (views.text[t - 1, n], Wording().of(env_spec(LEVEL)).action_names[rollout.actions[t - 1, n]])
                young = rollout.ages[t, n] == 0
                assert views.history[t, n].tolist()[-1] == (None if young else turn)
    assert len(one.final_views)
    assert all(row[-1] is not None for row in one.final_views.history)
    again = collector(1)
    again.begin()
    again.envs.restore(one.envs.snapshot())
    again.restore({name: np.asarray(value) for name, value in one.saved().items()})
    again.noise.set_state(one.noise.get_state())
    one.collect(Clock())
    again.collect(Clock())
    for a, b in zip(one.views.arrays(), again.views.arrays(), strict=True):
        assert (a is None and b is None) or (a == b).all()
