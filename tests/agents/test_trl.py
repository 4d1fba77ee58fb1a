"""The env that TRL is given keeps TRL's contract, and is the env that bkrl steps."""

import inspect

import numpy as np
import pytest
from transformers.utils import get_json_schema

import bkrl
from bkrl.agents.trl import to_trl_environment
from bkrl.core.errors import UsageError
from bkrl.envs import make_vec
from bkrl.text.wording import Wording

ENV = "BabyAI-MixedTrainLocal-v0@task_kinds=goto,room_size=5,num_dists=1,actions=restricted"


def tools_of(instance):
    """What TRL offers a model: the functions of the class that are neither private nor known by name."""
    found = [name for name, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)]
    assert {"reset", "get_reward"} <= set(found)
    return {name: getattr(instance, name) for name in found if name not in ("reset", "get_reward") and name[0] != "_"}


def test_every_action_is_a_tool_that_a_chat_template_can_describe():
    assert bkrl.to_trl_environment is to_trl_environment
    instance = to_trl_environment(ENV)()
    tools = tools_of(instance)
    assert set(tools) == {"turn_left", "turn_right", "go_forward"}
    for name, tool in tools.items():
        described = get_json_schema(tool)["function"]
        assert described["name"] == name == tool.__name__
        assert name.replace("_", " ") in described["description"]
        assert described["parameters"] == {"type": "object", "properties": {}}


def test_an_episode_is_that_of_the_env():
    factory, envs = to_trl_environment(ENV), make_vec(ENV, 1)
    names = {"turn_left": 0, "turn_right": 1, "go_forward": 2}
    rng, rewards = np.random.default_rng(0), []
    first, second = factory(), factory()
    for seed in range(12):
        told = first.reset(seed=seed, prompt=[{"role": "user", "content": ""}], other=3)
        envs.reset(seed=seed)
        assert envs.missions()[0] in told
        assert told.endswith(".")
        assert ".," not in told
        assert told == second.reset(seed=seed)
        assert first.get_reward() == 0.0
        paid, over = 0.0, False
        while not over:
            name = str(rng.choice(list(names)))
            said = getattr(first, name)()
            _, reward, terminated, truncated, _ = envs.step(np.array([names[name]]))
            paid, over = paid + float(reward[0]), bool(terminated[0] or truncated[0])
            assert said.startswith("The episode is over") == over
        assert first.get_reward() == paid
        assert first.go_forward().startswith("The episode is over; nothing")
        assert first.get_reward() == paid
        rewards.append(paid)
    assert len({bool(paid) for paid in rewards}) == 2  # some episodes are solved and some are not


def test_a_mission_that_changes_is_told_with_the_reply(monkeypatch):
    """With `@subgoals=shown` it changes within an episode; the first one alone was said."""
    instance = to_trl_environment(ENV)()
    instance.reset(seed=1)
    monkeypatch.setattr(instance._envs, "missions", lambda: np.array(["place table"], object))
    said = [instance.turn_left(), instance.turn_left()]
    assert said[0].startswith("Goal of the agent: place table\n")
    assert "place table" not in said[1]
    monkeypatch.undo()
    assert "place table" not in instance.reset(seed=1)


def test_an_env_without_missions_names_no_goal():
    """The first reply began with "Goal of the agent: "."""
    assert "Goal" not in to_trl_environment("Crafter-Text-Reward")().reset(seed=1)


def test_without_a_seed_instances_have_episodes_of_their_own():
    def told():
        factory = to_trl_environment(ENV)
        return [[instance.reset() for _ in range(4)] for instance in (factory(), factory())]

    first, second = told()
    assert len({*first, *second}) > 4
    assert told() == [first, second]


def test_actions_in_other_words():
    instance = to_trl_environment("BabyAI-GoToLocal-v0", Wording(language="fr"))()
    assert len(tools_of(instance)) == len(instance._envs.env_spec.action_names)
    assert "But de l'agent: " in instance.reset(seed=1)
    with pytest.raises(UsageError, match=r"The action '1' of .* cannot be a tool"):
        to_trl_environment(ENV, Wording(actions=("1", "2", "3")))
