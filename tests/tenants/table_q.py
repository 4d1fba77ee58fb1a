"""A learner that is not PPO: tabular Q-learning (Watkins 1989), with an agent and a policy file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import bkrl
from bkrl.agents import AGENTS, FORMAT
from bkrl.agents.protocol import Acted, Agent
from bkrl.core.files import atomic_write, read_json, to_json
from bkrl.core.flags import Flag
from bkrl.core.seeds import derive_seed, generator
from bkrl.envs import env_spec, make_vec
from bkrl.learn.hardware import CPU
from bkrl.learn.protocol import Saved

SHARP = 100.0
"""A sampled action is the best one, but where values are nearly the same."""


@dataclass
class TableAgent(Agent):
    """An agent whose policy is a table of values (S, A), by the only number that it sees."""

    env_id: str
    family: str
    action_names: tuple[str, ...]
    table: np.ndarray
    wants = ("symbols",)

    def begin(self, num_envs):
        return {}

    def act(self, views, state, started, noise):
        logits = (SHARP * self.table[views.symbols[:, 0]]).astype(np.float32)
        actions = (logits if noise is None else logits + noise).argmax(1)
        return Acted(actions, logits, np.zeros((len(logits), 0), np.float32), state)

    def save(self, folder, name="policy"):
        about = {"env_id": self.env_id, "family": self.family, "action_names": self.action_names}
        document = {"format": FORMAT, "network": {"name": "table"}, **about, "table": self.table.tolist()}
        atomic_write(folder / f"{name}.json", to_json(document))
        return [f"{name}.json"]

    @classmethod
    def load(cls, folder, name="policy"):
        found = read_json(folder / f"{name}.json")
        return cls(found["env_id"], found["family"], tuple(found["action_names"]), np.array(found["table"]))


@dataclass(frozen=True)
class TableSettings(bkrl.TrainRsConfig):
    """Settings of table-q."""

    num_envs: Annotated[int, Flag("envs stepped side by side", least=1)] = 8
    step_size: Annotated[float, Flag("table-q: share of an error by which a value moves", least=0, most=1)] = 0.5
    epsilon: Annotated[float, Flag("table-q: share of random actions", least=0, most=1)] = 0.2
    discount: Annotated[float, Flag("table-q: discount of the env's reward", least=0, most=1)] = 0.9


class QLearner:
    """A `Learner`: an iteration is a step of all envs."""

    hardware = CPU

    def __init__(self, settings: TableSettings) -> None:
        self.settings, self.total_steps, self.step, self.episodes = settings, settings.steps, 0, 0
        facts = env_spec(settings.env)
        self.agent = TableAgent(
            settings.env, facts.family, facts.action_names, np.zeros((256, len(facts.action_names)))
        )
        self.envs = make_vec(settings.env, settings.num_envs, backend=settings.backend)
        self.seen, _ = self.envs.reset(seed=derive_seed(settings.seed, "worlds"))

    @property
    def done(self) -> bool:
        return self.step >= self.total_steps

    def iterate(self) -> dict[str, float]:
        s, table, places = self.settings, self.agent.table, self.seen[:, 0].copy()
        rng = generator(s.seed, "explore", self.step)  # named after the step, so it need not be saved
        explore = rng.random(s.num_envs) < s.epsilon
        random = rng.integers(table.shape[1], size=s.num_envs)
        actions = np.where(explore, random, (table[places] + 1e-6 * rng.random((s.num_envs, table.shape[1]))).argmax(1))
        self.seen, rewards, terminated, truncated, infos = self.envs.step(actions)
        after = self.seen[:, 0].copy()
        if "_final_obs" in infos:
            ended = infos["_final_obs"]
            after[ended] = infos["final_obs"][ended, 0]
        targets = rewards + s.discount * ~terminated * table[after].max(1)
        errors = targets - table[places, actions]
        for place, action, error in zip(places, actions, errors, strict=True):
            table[place, action] += s.step_size * error
        self.step += s.num_envs
        self.episodes += int((terminated | truncated).sum())
        return {"learn/error": float(np.abs(errors).mean())}

    def state(self) -> Saved:
        tensors = {"table": self.agent.table, "seen": self.seen}
        tensors |= {f"worlds.{name}": array for name, array in self.envs.snapshot().items()}
        return Saved(tensors, {"step": self.step, "episodes": self.episodes}, True)

    def restore(self, saved: Saved) -> None:
        self.agent.table[:], self.seen = saved.tensors["table"], saved.tensors["seen"]
        self.step, self.episodes = saved.counters["step"], saved.counters["episodes"]
        envs = {name: array for name, array in saved.tensors.items() if name.startswith("worlds.")}
        self.envs.restore({name.removeprefix("worlds."): array for name, array in envs.items()})

    def warnings(self, metrics: dict[str, float]) -> dict[str, str]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {"episodes": self.episodes}

    def close(self) -> None:
        self.envs.close()


def build(settings: TableSettings) -> bkrl.Training:
    return bkrl.Training(QLearner(settings), iteration_steps=settings.num_envs)


AGENTS.add("table", TableAgent)
bkrl.register_method(bkrl.Method("table-q", TableSettings, build, "tabular Q-learning", baseline="table-q"))
