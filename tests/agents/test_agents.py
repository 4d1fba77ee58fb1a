"""Agents with and without a memory, with missions and goals, at random: played with, saved and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bkrl.agents import load_agent
from bkrl.agents.build import new_agent
from bkrl.agents.play import play
from bkrl.agents.protocol import Acted, Agent
from bkrl.agents.random import RandomAgent
from bkrl.core.errors import InputError
from bkrl.data.views import ViewKeys, Views
from bkrl.envs import env_spec, make_vec


class Told(Agent):
    """An agent without memory that does what its mission or its goal says, and sees nothing else that differs."""

    env_id, family, action_names = "Toy-Grid", "toy", ("up", "down", "left", "right")

    def __init__(self, *wants: str) -> None:
        self._wants = wants
        self.looked = 0

    @property
    def wants(self):
        return self._wants

    def begin(self, num_envs):
        return {}

    def act(self, views, state, started, noise):
        self.looked += len(views)
        told = views.mission if "mission" in self.wants else views.goal
        logits = np.zeros((len(views), 4), np.float32)
        logits[np.arange(len(views)), [("up", "down", "left", "right").index(str(one)) for one in told.ravel()]] = 1.0
        return Acted(logits.argmax(1), logits, np.zeros((len(views), 0), np.float32), state)


def grid_with_missions(num_envs: int):
    """Toy-Grid whose envs all look alike, and whose missions say where to go; the actions of each step."""
    envs, taken = make_vec("Toy-Grid", num_envs), []
    step, reset = envs.step, envs.reset

    def blind_step(actions):
        taken.append(actions.copy())
        observations, *rest = step(actions)
        return np.zeros_like(observations), *rest

    envs.reset = lambda **how: (np.zeros_like(reset(**how)[0]), {})
    envs.step = blind_step
    envs.missions = lambda: np.array([Told.action_names[i % 4] for i in range(num_envs)], object)
    return envs, taken


@pytest.mark.parametrize("wants", [("mission",), ("symbols", "mission"), ("goal", "symbols")])
def test_what_an_agent_says_of_a_view_is_not_said_of_another_mission_or_goal(wants: tuple[str, ...]) -> None:
    """All envs look alike; results that were reused by the symbols alone would send all of them one way."""
    envs, taken = grid_with_missions(20)
    agent = Told(*wants)

    class Goals:
        def happened(self, *args: object) -> None:
            pass

        def __call__(self, views: Views, started: np.ndarray) -> np.ndarray:
            assert len(started) == len(views) == 20
            return envs.missions()

    list(play(agent, envs, 20, seed=1, greedy=True, goals=Goals() if "goal" in wants else None))
    assert taken[0].tolist() == [i % 4 for i in range(20)]
    assert all(action in (i % 4, 0) for actions in taken for i, action in enumerate(actions))  # 0 once it has ended
    assert agent.looked < 20 * len(taken) / 2  # and what is equal is looked at once


def test_keys_tell_views_apart_in_what_is_wanted_and_in_nothing_else() -> None:
    symbols = np.array([[1], [1], [2], [1]], np.uint8)
    mission = np.array(["a", "b", "a", "a"], object)
    text = np.array([("x", "y"), ("x",), ("x", "y"), ("x", "y")], object)
    goal = np.array([[0.5], [0.5], [0.5], [0.25]], np.float32)
    views = Views(symbols, text=text, mission=mission, goal=goal)

    def same(*wants: str) -> list[tuple[int, int]]:
        rows = [row.tobytes() for row in ViewKeys(wants)(views)]
        return [(i, j) for i in range(4) for j in range(i) if rows[i] == rows[j]]

    assert same("symbols") == [(1, 0), (3, 0), (3, 1)]
    assert same("mission") == [(2, 0), (3, 0), (3, 2)]
    assert same("symbols", "mission") == [(3, 0)]
    assert same("text") == [(2, 0), (3, 0), (3, 2)]
    assert same("symbols", "goal") == [(1, 0)]


def test_an_agent_that_wants_a_goal_needs_something_that_sets_it() -> None:
    with pytest.raises(ValueError, match="nothing sets goals"):
        list(play(Told("goal"), make_vec("Toy-Grid", 2), 2, seed=0))


def test_views_are_what_was_asked_for() -> None:
    seen: list[Views] = []

    class Looks(RandomAgent):
        wants = ("symbols", "text", "mission")

        def act(self, views, state, started, noise):
            seen.append(views)
            return super().act(views, state, started, noise)

    facts = env_spec("BabyAI-Text-GoToLocal-RedBall-S20")
    agent = Looks(facts.env_id, facts.family, facts.action_names)
    next(play(agent, make_vec(facts.env_id, 2), 2, seed=0))
    assert seen[0].image is None
    assert seen[0].goal is None
    assert all(isinstance(mission, str) and mission for mission in seen[0].mission)
    assert all(isinstance(text, tuple) and text[0].endswith(".") for text in seen[0].text)


def test_random_agents_take_all_actions_and_come_back(tmp_path: Path) -> None:
    facts = env_spec("Toy-Grid")
    agent = RandomAgent("Toy-Grid", facts.family, facts.action_names)
    assert agent.save(tmp_path) == ["policy.json"]
    again = load_agent(tmp_path)
    assert again == agent
    played = [list(play(one, make_vec("Toy-Grid", n), 30, seed=2, keep=True)) for one, n in ((agent, 4), (again, 30))]
    counts = np.bincount(np.concatenate([episode.actions for episode in played[0]]), minlength=4)
    assert counts.min() > 0.2 * counts.sum()
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(*played, strict=True))
    acted = agent.act(Views(np.zeros((3, 1), np.uint8)), {}, np.ones(3, bool), None)
    assert np.allclose(acted.log_probs, np.log(1 / 4))


def test_log_probabilities_are_those_of_the_actions() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    acted = Acted(np.array([0, 1, 2, 1, 0]), logits, np.zeros((5, 0), np.float32), {})
    wanted = torch.from_numpy(logits).log_softmax(1).gather(1, torch.from_numpy(acted.actions)[:, None])[:, 0]
    assert np.allclose(acted.log_probs, wanted.numpy(), atol=1e-6)


def recurrent(env_id: str = "Toy-Grid", seed: int = 0):
    agent = new_agent("recurrent", make_vec(env_id, 1), "symbolic", 1, seed)
    with torch.no_grad():  # an opinion of its own: a fresh policy is nearly uniform
        agent.module.head.weight.mul_(100)
    return agent


@pytest.mark.parametrize("greedy", [True, False])
def test_a_recurrent_agent_plays_the_same_episodes_whatever_the_number_of_envs(tmp_path: Path, greedy: bool) -> None:
    """What it remembers belongs to the episode: it begins with nothing where an episode begins."""
    agent = recurrent()
    agent.save(tmp_path)
    played = [
        list(play(one, make_vec("Toy-Grid", n), 12, seed=3, greedy=greedy, keep=True))
        for one, n in ((agent, 12), (agent, 5), (load_agent(tmp_path), 1))
    ]
    for a, b, c in zip(*played, strict=True):
        assert np.array_equal(a.actions, b.actions)
        assert np.array_equal(a.actions, c.actions)


def test_a_recurrent_agent_remembers_within_an_episode_and_not_beyond() -> None:
    agent, rng = recurrent(), np.random.default_rng(0)
    rows = [Views(rng.integers(0, 25, (3, 1)).astype(np.uint8)) for _ in range(4)]
    first, no = np.ones(3, bool), np.zeros(3, bool)

    def last(started_at_2: np.ndarray, before: list[Views]) -> np.ndarray:
        state = agent.begin(3)
        for t, views in enumerate([*before, *rows[2:]]):
            state = (acted := agent.act(views, state, {0: first, 2: started_at_2}.get(t, no), None)).state
        return acted.logits

    others = [rows[1], rows[0]]
    assert not np.allclose(last(no, rows[:2]), last(no, others))
    assert np.array_equal(last(first, rows[:2]), last(first, others))
    mixed = last(np.array([True, False, False]), rows[:2])
    assert np.array_equal(mixed[0], last(first, rows[:2])[0])
    assert np.array_equal(mixed[1:], last(no, rows[:2])[1:])


def test_sequences_are_steps_one_after_the_other() -> None:
    """A rollout at once gives the logits, values and memory of its steps, also where episodes begin on the way."""
    agent, rng = recurrent(), np.random.default_rng(1)
    T, N = 9, 4
    symbols = rng.integers(0, 25, (T, N, 1)).astype(np.uint8)
    started = rng.random((T, N)) < 0.3
    state = begun = agent.begin(N)
    logits, values = [], []
    for t in range(T):
        acted = agent.act(Views(symbols[t]), state, started[t], None)
        state = acted.state
        logits.append(acted.logits)
        values.append(acted.values)
    with torch.no_grad():
        seen = {"seen": torch.from_numpy(symbols)}
        all_logits, all_values, after = agent.forward(seen, begun, torch.from_numpy(started))
    assert np.allclose(all_logits, np.stack(logits), atol=1e-5)
    assert np.allclose(all_values, np.stack(values), atol=1e-5)
    assert torch.allclose(after["hidden"], state["hidden"], atol=1e-6)


def test_files_of_agents_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text('{"format": 1, "network": {"name": "oracle"}}')
    with pytest.raises(InputError, match="describes an agent 'oracle'; this bkrl knows compact"):
        load_agent(tmp_path)
    (tmp_path / "policy.json").write_text('{"format": 2, "network": {}}')
    with pytest.raises(InputError, match="another format"):
        load_agent(tmp_path)
