"""T steps of N envs with one agent, written into storage that is allocated once.

Axes are named at allocation: T steps, N envs, K reward streams, A actions. Views stay uint8 until they are inside the
agent's encoder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bkrl.agents.network import one_step
from bkrl.agents.play import LookOnce
from bkrl.agents.protocol import Agent, Goals, State, TrainableAgent
from bkrl.agents.viewer import Viewer
from bkrl.core.errors import InputError
from bkrl.core.prefixes import under
from bkrl.core.seeds import derive_seed
from bkrl.data.distinct import Repeats
from bkrl.data.views import ViewKeys, Views
from bkrl.data.windows import Reads, Rollout
from bkrl.envs import family
from bkrl.envs.vector import BaseVectorEnv


class Collector:
    """Rollouts of one agent, one after another; episodes go on from one to the next.

    Args:
        envs: N envs with SAME_STEP autoreset. They are reset when the first rollout begins, env i with seed
            `derive_seed(seed, "worlds") + i`.
        agent: who acts.
        num_steps: T.
        num_values: K.
        seed: of the envs and of the action noise.
        recurrence: R, of how many steps sequences are that an agent with a memory learns from; 0: T.
        device: where logits and values lie.
        goals: sets goals, for an agent that wants them.
        reads: what rollouts hold for the streams: H rows of history before them, missions, the memory of episodes.
        teacher: is asked in each step what it would do, and does not act.

    Attributes:
        rollout: the last rollout, as reward streams see it.
        views, final_views: those of the rollout as the agent saw them: it may read missions in another wording.
        logits, values: (T, N, A) and (T, N, K), what the agent said of rows 0..T-1.
        taught: (T, N, A), the teacher's logits there; None without one.
        first_state: what the agent remembered before rows 0, R, 2R, ...: (T/R * N, ...).
        state, final_state: its recurrent state before row T; the same before `final_views`.
        look_once: whether a view that was seen before in a rollout gets the logits and values that it got then. In an
            agent with a memory it gets what was made of it then whatever is remembered.
        repeats: where each view was first seen in this rollout; None where every view is looked at.
        step, episodes: steps taken and episodes finished.
    """

    rollout: Rollout
    views: Views
    final_views: Views

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: TrainableAgent,
        *,
        num_steps: int,
        num_values: int,
        reads: Reads,
        seed: int,
        recurrence: int = 0,
        device: torch.device,
        goals: Goals | None = None,
        teacher: Agent | None = None,
    ) -> None:
        T, N, A = num_steps, envs.num_envs, len(agent.action_names)
        self.envs, self.agent, self.seed = envs, agent, seed
        self.num_steps, self.reads, self.recurrence = num_steps, reads, recurrence or num_steps
        self.view = Viewer(envs, agent, goals, memory=reads.memory)
        self.logits = torch.zeros(T, N, A, device=device)
        self.taught: Tensor | None = None
        if teacher is not None:
            self.teacher, self.teacher_view = teacher, Viewer(envs, teacher)
            self.teacher_state = teacher.begin(N)
            self.taught = torch.zeros(T, N, A, device=device)
        self.values = torch.zeros(T, N, num_values, device=device)
        self.noise = torch.Generator(device).manual_seed(derive_seed(seed, "actions"))
        self.state = self.first_state = self.final_state = agent.begin(N)
        # On a GPU, recomputing duplicates is cheaper than finding them.
        self.looks_apart: Any = agent if agent.looks_apart else None
        once = not self.state or self.looks_apart is not None
        self.look_once = device.type == "cpu" and once and len(agent.wants) > 0
        self.looks: tuple[Tensor, ...] | None = None  # of the distinct views
        self.repeats: Repeats | None = None
        self.achievements = family(envs.env_spec.family).achievements
        self.begun = False
        self.step = self.episodes = 0

    def begin(self) -> None:
        """Reset the envs and allocate the storage, once."""
        if self.begun:
            return
        self.begun = True
        T, H, N = self.num_steps, self.reads.horizon, self.envs.num_envs
        observations, _ = self.envs.reset(seed=derive_seed(self.seed, "worlds"))
        first = self.view(observations, np.ones(N, bool))
        rows = (a if a is None else self._storage(T + 1, a) for a in first.arrays())
        self.views = Views(*rows)  # type: ignore[arg-type]
        self.final_views = self.views[0, :0]
        # the same memory as what the agent sees, but for missions, which are as the envs say them
        seen = replace(self.views, mission=np.full((T + 1, N), "", object) if self.reads.mission else None)
        self.history = np.zeros((H, N, *first.symbols.shape[1:]), np.uint8), np.zeros((H, N), np.int64)
        self.rollout = Rollout(
            views=seen,
            final_views=self.final_views,
            final_index=np.zeros(0, np.int64),
            actions=np.zeros((T, N), np.int64),
            ages=np.zeros((T + 1, N), np.int32),
            rewards=np.zeros((T, N), np.float32),
            terminated=np.zeros((T, N), bool),
            truncated=np.zeros((T, N), bool),
            past=self.history[0],
            past_actions=self.history[1],
        )
        self._note_missions(T)
        self.views[T] = first  # the row the first rollout begins with
        if self.look_once:
            self._keys = ViewKeys(self.agent.wants)
            if self._keys.plain:
                self._key_rows = vars(self.views)[self._keys.wants[0]][:T]
            else:
                width = self._keys(first).shape[1]  # whole words are compared eight times as quickly as bytes
                self._key_rows = np.zeros((T, N, -(-width // 8) * 8), np.uint8)
            self.repeats = Repeats(self._key_rows)

    @torch.no_grad()
    def collect(self, clock: Clock, done: Callable[[int], None] = lambda steps: None) -> dict[str, float]:
        """T steps of every env with the agent as it is, each told to `done`; figures of the episodes that ended."""
        self.begin()
        T, H, r, views = self.num_steps, self.reads.horizon, self.rollout, self.views
        # The last H + 1 rows of the previous rollout are the history and the first views of this one.
        r.past, r.past_actions = self.history
        r.ages[0] = r.ages[T]
        views[0] = views[T]
        if r.views.mission is not None:
            r.views.mission[0] = r.views.mission[T]
        first_states: list[State] = []
        # argmax(logits + Gumbel noise) is a sample of the softmax; the whole rollout's noise is drawn in one call.
        gumbel = torch.empty_like(self.logits).exponential_(generator=self.noise).log_().neg_()
        finals: list[tuple[int, np.ndarray, Views, State]] = []
        episode_returns: list[np.ndarray] = []
        episode_lengths: list[np.ndarray] = []
        successes = 0
        unlocked = np.zeros(len(self.achievements), np.int64)
        if self.repeats is not None:
            self.repeats.clear()
            self._keys.clear()
        if self.taught is not None:  # views of earlier rollouts are looked at anew, as by a run that goes on from here
            ask = self.teacher.act
            if not self.teacher_state:
                self.teacher.begin(self.envs.num_envs)
                ask = LookOnce(self.teacher).act

        for t in range(T):
            if t % self.recurrence == 0:
                first_states.append(self.state)
            self._look(t)
            r.actions[t] = (self.logits[t] + gumbel[t]).argmax(1).cpu().numpy()
            self.view.acted(r.actions[t])
            if self.taught is not None:
                seen = self.teacher_view(views[t].symbols, r.ages[t] == 0)
                said = ask(seen, self.teacher_state, r.ages[t] == 0, None)
                self.taught[t], self.teacher_state = torch.from_numpy(said.logits), said.state
                self.teacher_view.acted(r.actions[t])
            clock.lap("policy")

            observations, r.rewards[t], r.terminated[t], r.truncated[t], infos = self.envs.step(r.actions[t])
            self.view.happened(r.actions[t], infos, observations)
            if self.taught is not None:
                self.teacher_view.happened(r.actions[t], infos, observations)
            np.add(r.ages[t], 1, out=r.ages[t + 1])
            if "_final_obs" in infos:
                ended = np.flatnonzero(infos["_final_obs"])
                memory = {name: one[ended] for name, one in self.state.items()}
                finals.append((t, ended, self.view.last(infos["final_obs"], ended, views[t]), memory))
                r.ages[t + 1, ended] = 0
                episode_returns.append(infos["episode"]["r"][ended])
                episode_lengths.append(infos["episode"]["l"][ended])
                successes += int(np.count_nonzero(infos["success"][ended]))
                if self.achievements:
                    unlocked += np.count_nonzero(infos["achievements"][ended], 0)
            views[t + 1] = self.view(observations, r.ages[t + 1] == 0)
            self._note_missions(t + 1)
            clock.lap("env")
            done(t + 1)

        N = r.num_envs
        r.final_index = np.concatenate([np.zeros(0, np.int64), *(t * N + ended for t, ended, _, _ in finals)])
        self.final_views = Views.joined([seen for _, _, seen, _ in finals]) if finals else views[0, :0]
        r.final_views = replace(self.final_views, mission=None)
        rows = slice(max(T - H, 0), T)
        self.history = (
            np.concatenate([r.past[T:], views.symbols[rows]]),
            np.concatenate([r.past_actions[T:], r.actions[rows]]),
        )
        memories = [memory for _, _, _, memory in finals]
        self.first_state = {name: torch.cat([state[name] for state in first_states]) for name in self.state}
        self.final_state = {
            name: torch.cat([one[:0], *(memory[name] for memory in memories)]) for name, one in self.state.items()
        }
        self.step += T * N
        self.episodes += len(r.final_index)
        metrics = {"rollout/episodes": float(len(r.final_index)), "rollout/reward": float(r.rewards.mean())}
        if finals:
            metrics["rollout/return"] = float(np.concatenate(episode_returns).mean())
            metrics["rollout/length"] = float(np.concatenate(episode_lengths).mean())
            metrics["rollout/success_rate"] = successes / len(r.final_index)
            shares = (unlocked / len(r.final_index)).tolist()
            metrics |= {f"rollout/unlocked/{name}": one for name, one in zip(self.achievements, shares, strict=True)}
        return metrics

    def _storage(self, rows: int, first: np.ndarray) -> np.ndarray:
        """Zeros for so many such rows. Bytes stay in their place in memory if a GPU reads them: it needs no copy."""
        if self.logits.device.type == "cuda" and first.dtype == np.uint8:
            return torch.zeros((rows, *first.shape), dtype=torch.uint8, pin_memory=True).numpy()
        return np.zeros((rows, *first.shape), first.dtype)

    def _note_missions(self, t: int) -> None:
        """Those of the episodes that run at row t."""
        if self.rollout.views.mission is not None:
            self.rollout.views.mission[t] = self.envs.missions()

    def _look(self, t: int) -> None:
        """Logits and values of row t."""
        if self.repeats is None:
            started = self.rollout.ages[t] == 0
            inputs = self.agent.inputs(self.views[t])
            self.logits[t], self.values[t], self.state = one_step(self.agent, inputs, self.state, started)
            return
        # The agent does not change during a rollout: what it has seen before in it, it need not look at again.
        if not self._keys.plain:
            keys = self._keys(self.views[t])
            self._key_rows[t, :, : keys.shape[1]] = keys
        before = self.repeats.count
        numbers, new = self.repeats.add(t)
        if self.looks_apart is not None:
            if len(new):
                looks = self.looks_apart.look(self.agent.inputs(self.views[t, new]))
                if self.looks is None:
                    self.looks = tuple(one.new_empty(self.logits.shape[:2].numel(), one.shape[1]) for one in looks)
                for kept, one in zip(self.looks, looks, strict=True):
                    kept[before : self.repeats.count] = one
            index, started = torch.from_numpy(numbers), torch.from_numpy(self.rollout.ages[t] == 0)
            go_on = self.looks_apart.go_on
            self.logits[t], self.values[t], self.state = go_on(self.looks, index[None], self.state, started[None])
            return
        # Repeats within the row are looked at, too: products of fewer rows would have other last digits than they had.
        new = np.flatnonzero(numbers >= before)
        if len(new):
            inputs, places = self.agent.inputs(self.views[t, new]), torch.from_numpy(new)
            self.logits[t, places], self.values[t, places], _ = self.agent.forward(inputs, {}, None)
        index = torch.from_numpy(self.repeats.first[numbers])
        self.logits[t] = self.logits.flatten(0, 1)[index]
        self.values[t] = self.values.flatten(0, 1)[index]

    @torch.no_grad()
    def last_values(self, ends: np.ndarray) -> Tensor:
        """(N + C, K): values of row T, which comes after the rollout, and of C of the final views, `ends` (a mask)."""
        rows = Views.joined([self.views[self.num_steps], self.final_views[ends]])
        state = {name: torch.cat([one, self.final_state[name][ends]]) for name, one in self.state.items()}
        started = np.concatenate([self.rollout.ages[-1] == 0, np.zeros(np.count_nonzero(ends), bool)])
        return self.agent.values(rows, state, started)

    # ------------------------------------------------------------------------------------------------------ state

    def saved(self) -> dict[str, Any]:
        """The rows that the next rollout begins with, what the agent remembers, and the state of the noise."""
        self.begin()
        T, views = self.num_steps, self.views
        tensors = {
            "rollout.past": self.history[0],
            "rollout.actions": self.history[1],
            "rollout.ages": self.rollout.ages[T],
            "rollout.symbols": views.symbols[T],
            "rng.actions": self.noise.get_state(),
        }
        if views.image is not None:
            tensors["rollout.image"] = views.image[T]
        if views.goal is not None:
            tensors["rollout.goal"] = views.goal[T].astype(str) if views.goal.dtype == object else views.goal[T]
        tensors |= {f"rollout.view.{name}": one for name, one in self.view.saved().items()}
        if self.taught is not None:
            tensors |= {f"rollout.teacher.view.{name}": one for name, one in self.teacher_view.saved().items()}
            tensors |= {f"rollout.teacher.state.{name}": one for name, one in self.teacher_state.items()}
        return tensors | {f"rollout.state.{name}": one for name, one in self.state.items()}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take back what `saved` returned, once the envs are back in their state.

        Raises:
            InputError: an earlier bkrl wrote it, whose rollouts were another record.
        """
        if "rollout.past" not in tensors:
            raise InputError("The checkpoint is of an earlier bkrl, which this one cannot continue; pass --fresh.")
        T, views = self.num_steps, self.views
        self.history = tensors["rollout.past"], tensors["rollout.actions"]
        self.rollout.ages[T] = tensors["rollout.ages"]
        views.symbols[T] = tensors["rollout.symbols"]
        if views.image is not None:
            views.image[T] = tensors["rollout.image"]
        read = self.view.restored(under(tensors, "rollout.view."), views.symbols[T])
        for name in ("text", "mission", "history", "memory"):
            if (column := vars(views)[name]) is not None:
                column[T] = vars(read)[name]
        self._note_missions(T)
        if views.goal is not None:
            views.goal[T] = tensors["rollout.goal"].astype(views.goal.dtype)
        device = self.logits.device
        self.state = {name: torch.from_numpy(tensors[f"rollout.state.{name}"]).to(device) for name in self.state}
        if self.taught is not None:
            self.teacher_view.restored(under(tensors, "rollout.teacher.view."), views.symbols[T])
            kept = under(tensors, "rollout.teacher.state.")
            self.teacher_state = {
                name: torch.from_numpy(kept[name]) if isinstance(one, Tensor) else kept[name].copy()
                for name, one in self.teacher_state.items()
            }

    def restart(self) -> None:
        """Begin fresh episodes in envs that could not be put back, with seeds that belong to this step."""
        self.begin()
        N = self.envs.num_envs
        observations, _ = self.envs.reset(seed=derive_seed(self.seed, "worlds", self.step))
        self.views[self.num_steps] = self.view(observations, np.ones(N, bool))
        self.rollout.ages[self.num_steps] = 0
        self._note_missions(self.num_steps)
        self.state = self.agent.begin(N)
        if self.taught is not None:
            self.teacher_state = self.teacher.begin(N)


class Clock:
    """Seconds spent in each phase of an iteration."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._seconds = dict.fromkeys(("env", "policy", "potential", "update"), 0.0)

    def lap(self, phase: str) -> None:
        """What was done since the last lap belongs to this phase."""
        now = time.perf_counter()
        self._seconds[phase] += now - self._since
        self._since = now

    def metrics(self) -> dict[str, float]:
        """`time/…` of each phase."""
        return {f"time/{phase}": seconds for phase, seconds in self._seconds.items()}
