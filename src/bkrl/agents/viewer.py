"""From what envs return to the views that an agent wants."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.agents.protocol import Agent, Goals
from bkrl.core.errors import InputError
from bkrl.data.views import Views, pack_texts, unpack_texts
from bkrl.envs import memory_of
from bkrl.envs.vector import BaseVectorEnv


def symbols_of(observations: Any) -> NDArray[np.uint8]:
    """The symbolic observations, also where envs return pictures beside them."""
    return observations["symbolic"] if isinstance(observations, dict) else observations


def symbols_after(observations: Any, infos: Mapping[str, Any]) -> NDArray[np.uint8]:
    """(N, ...) what followed the actions: the true last symbols where an episode ended, not the next one's first."""
    after = symbols_of(observations)
    if "_final_obs" in infos:
        after, ended = after.copy(), infos["_final_obs"]
        after[ended] = symbols_of(infos["final_obs"])[ended]
    return after


class Viewer:
    """Makes views of N envs, for one agent.

    Args:
        envs: the envs.
        agent: what it wants is computed, and nothing else.
        goals: sets goals for an agent that wants `goal`; None: the agent's own, its attribute `goals`, or what the `of`
            of that attribute makes for so many envs.
        memory: whether views hold the memory of episodes although the agent does not want it.
    """

    def __init__(self, envs: BaseVectorEnv, agent: Agent, goals: Goals | None = None, *, memory: bool = False) -> None:
        self.envs, self.wants = envs, agent.wants
        self.goals: Goals | None = goals or (None if agent.goals is None else agent.goals.of(envs.num_envs))
        if "goal" in self.wants and self.goals is None:
            raise ValueError("the agent wants a goal, and nothing sets goals")
        self._remembers = "history" in self.wants
        self._reads = self._remembers or "text" in self.wants
        self._worded: Any = agent.wording.of(envs.env_spec) if self._reads or "mission" in self.wants else None
        self._history = np.full((envs.num_envs, agent.observations - 1), None, object)  # before the present
        self._text: Any = None  # the present
        self._memory = memory_of(envs.env_spec.env_id) if memory or "memory" in self.wants else None
        if self._memory is None and (memory or "memory" in self.wants):
            raise InputError(f"Nothing is remembered of episodes in {envs.env_spec.env_id}: its family has no memory.")
        if self._memory is not None:
            self._kept = np.zeros((envs.num_envs, self._memory.size), np.uint8)
            self._symbols = np.zeros((0,), np.uint8)  # the present

    def __call__(self, observations: Any, started: NDArray[np.bool_]) -> Views:
        """(N,) views of the first or of the next observations; `started` as in `Agent.act`."""
        if self._memory is not None:
            self._kept[started] = 0
            self._symbols = symbols_of(observations).copy()
        views = self._read(self._of(observations), started)
        if "env_state" in self.wants:
            views = replace(views, env_state=self.envs.env_states())
        return views if self.goals is None else replace(views, goal=self.goals(views, started))

    def acted(self, actions: NDArray[np.int64]) -> None:
        """The agents took `actions` (N,) at the views that were made last."""
        if self._remembers and self._history.shape[1]:
            names = self._worded.action_names
            said = zip(self._text, (names[action] for action in actions.tolist()), strict=True)
            turns = (None if text is None else (text, name) for text, name in said)
            self._history[:, :-1] = self._history[:, 1:]
            self._history[:, -1] = np.fromiter(turns, object, len(actions))

    def happened(self, actions: NDArray[np.int64], infos: Mapping[str, Any], observations: Any) -> None:
        """The envs returned these after these actions (N,): goals that follow what happens are told, and it is
        remembered.
        """
        if self.goals is None and self._memory is None:
            return
        after = symbols_after(observations, infos)
        if self.goals is not None:
            self.goals.happened(actions, infos, after)
        if self._memory is not None:
            self._memory.update(self._kept, self._symbols, actions, after)

    def last(self, observations: Any, ended: NDArray[np.int64], before: Views) -> Views:
        """(K,) views of the last observations of episodes; mission and goal stay those of the step before.

        Args:
            observations: `infos["final_obs"]`, of all envs.
            ended: (K,) the envs.
            before: (N,) what was seen before the last action.
        """
        both = isinstance(observations, dict)
        views = self._of({key: one[ended] for key, one in observations.items()} if both else observations[ended])
        if before.mission is None and before.goal is None and before.history is None and before.memory is None:
            return views
        old = before[ended]
        history = self._history[ended] if self._remembers else None
        return replace(views, mission=old.mission, goal=old.goal, history=history, memory=self._fields(ended))

    def saved(self) -> dict[str, NDArray[Any]]:
        """What the agents have seen and done lately, as arrays that a checkpoint can hold."""
        saved = pack_texts(self._history.ravel().tolist()) if self._remembers else {}
        return saved if self._memory is None else {**saved, "memory": self._kept}

    def restored(self, saved: Mapping[str, NDArray[Any]], symbols: NDArray[np.uint8]) -> Views:
        """What was made last of `symbols` (N, ...) before `saved` was called, without image and goal.

        The envs are back in their state.
        """
        if self._remembers:
            turns = unpack_texts(saved)
            self._history = np.fromiter(turns, object, len(turns)).reshape(self._history.shape)
        if self._memory is not None:
            self._kept, self._symbols = saved["memory"].copy(), symbols.copy()
        return self._read(self._of_symbols(symbols), np.zeros(self.envs.num_envs, bool))

    def _of(self, observations: Any) -> Views:
        views = self._of_symbols(symbols_of(observations))
        return replace(views, image=observations["image"]) if "image" in self.wants else views

    def _of_symbols(self, symbols: NDArray[np.uint8]) -> Views:
        return Views(symbols, text=self._worded.texts(symbols) if self._reads else None)

    def _read(self, views: Views, started: NDArray[np.bool_]) -> Views:
        """With mission, memory and history."""
        if "mission" in self.wants:
            views = replace(views, mission=self._worded.missions(self.envs.missions()))
        if self._memory is not None:
            views = replace(views, memory=self._fields(slice(None)))
        if self._remembers:
            self._history[started] = None
            self._text = views.text
            views = replace(views, history=self._history.copy())
        return views

    def _fields(self, rows: Any) -> NDArray[np.uint8] | None:
        """(…, M) what is remembered in some of the envs."""
        return None if self._memory is None else self._kept[rows, : len(self._memory.names)].copy()
