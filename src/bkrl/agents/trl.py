"""An env as TRL's GRPOTrainer wants one, so that a policy trained here can be held against one trained there.

TRL (1.16) makes an env for each rollout with `environment_factory()`, calls `reset(**row)` with the columns of the
dataset's row, offers every other public method as a tool, described by its type hints and docstring, and takes the
reward of the finished rollout from `get_reward()`. TRL is not needed here.
"""

import itertools
import keyword
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bkrl.agents.protocol import Agent
from bkrl.agents.viewer import Viewer
from bkrl.core.errors import UsageError
from bkrl.core.seeds import derive_seed
from bkrl.envs import env_spec, make_vec
from bkrl.text.policy_prompts import LABELS
from bkrl.text.wording import Wording

_OVER = "The episode is over; nothing happens any more."
_IN_TRL = ("reset", "get_reward")


class _Episode:
    """One env with one episode at a time. What TRL must not offer as a tool begins with an underscore."""

    _env_id: str
    _wording: Wording
    _numbers: Any

    def __init__(self) -> None:
        self._envs = make_vec(self._env_id, 1)
        self._number, self._episodes = next(self._numbers), 0
        self._view, self._reward, self._over = self._viewer(), 0.0, True
        self._mission: str | None = None

    def _viewer(self) -> Viewer:
        reader: Any = type("Reader", (Agent,), {"wants": ("text", "mission"), "wording": self._wording})
        return Viewer(self._envs, reader)

    def reset(self, seed: int | None = None, **columns: Any) -> str:
        """Begin an episode: that of `seed`, a column of the dataset, else the next one of this env."""
        chosen = derive_seed(self._number, "trl", self._episodes) if seed is None else int(seed)
        self._episodes += 1
        self._reward, self._over, self._view = 0.0, False, self._viewer()
        self._mission = None
        return self._said(self._view(self._envs.reset(seed=chosen)[0], np.ones(1, bool)))

    def get_reward(self) -> float:
        """The env's reward of the episode so far."""
        return self._reward

    def _act(self, action: int) -> str:
        if self._over:
            return _OVER
        observations, rewards, terminated, truncated, _ = self._envs.step(np.array([action]))
        self._reward += float(rewards[0])
        self._over = bool(terminated[0] or truncated[0])
        if self._over:
            return f"{_OVER} Reward: {self._reward:g}"
        return self._said(self._view(observations, np.zeros(1, bool)))

    def _said(self, views: Any) -> str:
        """What is seen, after the mission where that is new: sub-goals that an env shows change within an episode."""
        said, before, self._mission = " ".join(views.text[0]), self._mission, views.mission[0]
        if self._mission in ("", before):
            return said
        labels = LABELS[self._wording.language or self._envs.env_spec.language or "en"]
        return f"{labels.goal}: {self._mission}\n{said}"


def to_trl_environment(env_id: str, wording: Wording | None = None) -> type:
    """A class for `GRPOTrainer(environment_factory=…)`: each action of the env is a tool of its name.

    A tool returns the sentences of the next observation, after the mission where it has changed. Rows of the dataset
    may have a column `seed`: the generations of one group then begin in the same state. Without one, each instance has
    episodes of its own.

    Args:
        env_id: with options, as in `ID@num_dists=4`.
        wording: in which words captions, missions and actions are told.

    Raises:
        UsageError: there is no such env, or its actions cannot be names of functions.
    """
    facts, wording = env_spec(env_id), wording or Wording()
    tools: dict[str, Callable[[Any], str]] = {}
    for number, name in enumerate(wording.of(facts).action_names):
        called = re.sub(r"\W+", "_", name.strip())
        if not called.isidentifier() or keyword.iskeyword(called) or called in (*tools, *_IN_TRL):
            raise UsageError(
                f"The action '{name}' of {env_id} cannot be a tool of its own name; give other names with a wording."
            )
        tools[called] = _tool(number, called, name)
    own = {"_env_id": env_id, "_wording": wording, "_numbers": itertools.count()}
    return type(re.sub(r"\W+", "_", facts.env_id), (_Episode,), {**own, **tools})


def _tool(number: int, called: str, name: str) -> Callable[[Any], str]:
    def tool(self) -> str:  # type: ignore[no-untyped-def]  # each hint is read as an argument that a model gives
        return self._act(number)  # type: ignore[no-any-return]

    tool.__name__ = tool.__qualname__ = called
    tool.__doc__ = f"Take the action: {name}.\n\nReturns:\n    What is seen afterwards.\n"
    return tool
