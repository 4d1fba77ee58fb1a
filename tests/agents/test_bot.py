"""The bot as an agent: it plays as any other, is saved, read back and refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from bkrl.agents import load_agent
from bkrl.agents.bot import BotAgent
from bkrl.agents.play import Episode, play
from bkrl.agents.protocol import Agent
from bkrl.core.errors import InputError, UsageError
from bkrl.envs import make_vec

LEVEL = "BabyAI-MixedTrainLocal-v0"


def played(agent: Agent, num_envs: int, episodes: int = 24, greedy: bool = False, **options: object) -> list[Episode]:
    return list(play(agent, make_vec(agent.env_id, num_envs, **options), episodes, seed=5, greedy=greedy, keep=True))


def test_episodes_are_the_same_however_many_envs_there_are_and_after_saving(tmp_path: Path) -> None:
    agent = BotAgent.of(LEVEL, epsilon=0.3)
    agent.save(tmp_path)
    again = load_agent(tmp_path)
    assert again == agent
    for one, other in zip(played(agent, 24), played(again, 5), strict=True):
        assert one.actions.tolist() == other.actions.tolist()
    assert [e.actions.tolist() for e in played(agent, 7, greedy=True)] == [
        e.actions.tolist() for e in played(BotAgent.of(LEVEL), 9)
    ]


def test_the_log_probabilities_are_those_of_its_choice() -> None:
    agent = BotAgent.of(LEVEL, epsilon=0.7)
    envs = make_vec(LEVEL, 2000)
    state = agent.begin(2000)
    from bkrl.agents.viewer import Viewer

    views = Viewer(envs, agent)(envs.reset(seed=0)[0], np.ones(2000, bool))
    noise = np.random.default_rng(0).gumbel(size=(2000, 7)).astype(np.float32)
    greedy, sampled = (agent.act(views, state, np.ones(2000, bool), one) for one in (None, noise))
    assert np.allclose(np.exp(greedy.log_probs), 0.4, atol=1e-6)
    same = sampled.actions == greedy.actions
    assert abs(same.mean() - 0.4) < 0.04
    assert np.allclose(np.exp(sampled.log_probs[~same]), 0.1, atol=1e-6)
    assert np.isfinite(BotAgent.of(LEVEL).act(views, state, np.ones(2000, bool), noise).log_probs).all()


def test_a_state_that_was_given_is_left_as_it_is() -> None:
    agent, envs = BotAgent.of(LEVEL), make_vec(LEVEL, 3)
    state = agent.begin(3)
    before = {name: one.copy() for name, one in state.items()}
    from bkrl.agents.viewer import Viewer

    views = Viewer(envs, agent)(envs.reset(seed=0)[0], np.ones(3, bool))
    after = agent.act(views, state, np.ones(3, bool), None).state
    assert all((state[name] == before[name]).all() for name in state)
    assert (after["explored"] != state["explored"]).any()


def test_where_there_is_no_bot_a_sentence_says_so() -> None:
    with pytest.raises(UsageError, match=r"CrafterReward-v1 has no bot; .*"):
        BotAgent.of("CrafterReward-v1")
    with pytest.raises(UsageError, match="leave --backend out"):
        played(BotAgent.of("BabyAI-GoToObj-v0"), 1, 1, backend="reference")


def test_a_bot_that_does_not_say_how_often_it_errs_is_refused(tmp_path: Path) -> None:
    BotAgent.of(LEVEL).save(tmp_path)
    document = json.loads((tmp_path / "policy.json").read_text())
    del document["epsilon"]
    (tmp_path / "policy.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="it lacks 'epsilon'"):
        load_agent(tmp_path)
