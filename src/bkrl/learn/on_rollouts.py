"""The base class of learners on rollouts: they collect T steps of N envs, are paid for them, and learn from them.

`RolloutLearner` is the base class; PPO and the learners of action values implement the update. Axes are named
at allocation: T steps, N envs, K reward streams.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bkrl.agents.networks.layers import to_device
from bkrl.agents.protocol import Agent, Goals, TrainableAgent
from bkrl.agents.weights import load_weights
from bkrl.core.activity import doing
from bkrl.core.errors import RunFailed
from bkrl.core.prefixes import under
from bkrl.core.seeds import derive_seed
from bkrl.data.windows import Reads
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.protocol import Learner, Saved, Stateful
from bkrl.learn.rollout import Clock, Collector
from bkrl.rewards.streams import RewardStream


class Diverged(RunFailed):
    """A loss, a gradient or the network is no longer finite; nothing after the last checkpoint can be trusted."""


def moments(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """What a checkpoint holds of an optimiser, as `optimizer.INDEX.KEY`, by the places of these parameters."""
    kept = ((index, optimizer.state.get(parameter, {})) for index, parameter in enumerate(parameters))
    return {f"optimizer.{index}.{key}": value for index, found in kept for key, value in found.items()}


def restore_moments(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], saved: Mapping[str, np.ndarray]
) -> None:
    """Take back what `moments` returned, among other entries; a parameter without any stays as it is."""
    for index, parameter in enumerate(parameters):
        if found := under(saved, f"optimizer.{index}."):
            kept = {key: torch.from_numpy(one).clone().to(parameter.device) for key, one in found.items()}
            optimizer.state[parameter] = kept


class RolloutLearner(Learner):
    """The envs, the agent, the storage and the rewards of one run.

    A subclass has an `optimizer` of `parameters`, and learns from what is stored in `learn`.

    Args:
        envs: N envs with SAME_STEP autoreset, reset when the first rollout begins.
        agent: who acts.
        streams: what the agent is paid in.
        num_steps: T.
        num_values: values that the agent has.
        recurrence: see `Collector`.
        total_steps: env steps to train for; the last iteration may go past it by less than one rollout.
        seed: of the envs, the action noise and the minibatches, each from its own named stream.
        hardware: where the agent computes, and in which precision.
        goals: sets goals, for an agent that wants them.
        teacher: see `Collector`.
    """

    optimizer: torch.optim.Optimizer
    critic: Stateful | None = None

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: TrainableAgent,
        streams: Sequence[RewardStream],
        *,
        num_steps: int,
        num_values: int,
        recurrence: int = 0,
        total_steps: int,
        seed: int = 0,
        hardware: Hardware = CPU,
        goals: Goals | None = None,
        teacher: Agent | None = None,
    ) -> None:
        T, N, K = num_steps, envs.num_envs, len(streams)
        self.envs, self.agent, self.streams = envs, agent, list(streams)
        self.total_steps, self.seed = total_steps, seed
        self.hardware, self.device = hardware, hardware.device
        agent.prepare(self.device, hardware.compile)
        agent.schedule(0)
        self.collector = Collector(
            envs,
            agent,
            num_steps=T,
            num_values=num_values,
            reads=Reads.joined([stream.reads for stream in streams]),
            seed=seed,
            recurrence=recurrence,
            device=self.device,
            goals=goals,
            teacher=teacher,
        )
        self.rewards = torch.zeros(T, N, K, device=self.device)
        self.gamma = torch.tensor([stream.gamma for stream in streams], device=self.device)
        self.coef = torch.tensor([stream.coef for stream in streams], device=self.device)
        self.episodic = torch.tensor([stream.episodic for stream in streams], device=self.device)
        # Gradients are clipped for each owner apart: a predictor's early errors must not slow the policy down.
        own = {stream.name: (stream, list(stream.parameters())) for stream in streams}
        self.learners = {name: stream for name, (stream, trained) in own.items() if trained}
        self.own = {name: trained for name, (_, trained) in own.items() if trained}
        self.owners = [[p for group in agent.groups().values() for p in group], *self.own.values()]
        self.parameters = [p for owner in self.owners for p in owner]
        self.shuffle = torch.Generator(self.device).manual_seed(derive_seed(seed, "minibatches"))
        self.iteration = 0

    @property
    def step(self) -> int:  # type: ignore[override]
        """Env steps taken."""
        return self.collector.step

    def iterate(self) -> dict[str, float]:
        """One iteration; returns its metrics. `time/…` are seconds.

        Raises:
            Diverged: a loss, a gradient or the network that they leave is not finite.
        """
        clock = Clock()
        self.agent.schedule(self.step)  # after an evaluation, which may have been made in another process
        before = dict(self.agent.counted)  # what it reads, evaluations included
        steps = (self.collector.num_steps, f"steps of {self.envs.num_envs} envs")
        # Around the whole rollout, so that the weights are converted once.
        with doing("playing a rollout", *steps) as done, self.hardware.autocast():
            metrics = self.collector.collect(clock, done)
        metrics |= {f"rollout/{name}": float(number - before[name]) for name, number in self.agent.counted.items()}
        with doing("computing the rewards of a rollout"):
            metrics |= self.pay()
        clock.lap("potential")
        with doing("learning from a rollout"):
            metrics |= self.learn()
        self.agent.schedule(self.step)
        clock.lap("update")
        return metrics | clock.metrics()

    def learn(self) -> dict[str, float]:
        """Learn from the stored rollout and its rewards; figures."""
        raise NotImplementedError

    def pay(self) -> dict[str, float]:
        """Ask each stream for the rewards of the stored rollout; what the streams report of it."""
        metrics: dict[str, float] = {}
        for k, stream in enumerate(self.streams):
            with np.errstate(over="ignore", invalid="ignore"):  # a reward that is not finite ends in `Diverged`
                rewards = stream.rewards(self.collector.rollout)
            self.rewards[:, :, k] = to_device(rewards, self.device)
            metrics |= stream.metrics()
        return metrics

    @torch.no_grad()
    def next_values(self, bootstrap_truncated: bool) -> tuple[Tensor, Tensor]:
        """What follows each action is worth: (T, N, K), and (T, N, K) bool, whether a return stops at that step.

        0 after termination, the value of the true last observation after truncation (0 without
        `bootstrap_truncated`); streams that are not episodic run on.
        """
        values, r = self.collector.values, self.collector.rollout
        T, N, K = values.shape
        # One forward for every value that was not stored: the bootstrap row and the ends that were cut off.
        ends_truncated = r.truncated.reshape(-1)[r.final_index] & ~r.terminated.reshape(-1)[r.final_index]
        ends_truncated &= bootstrap_truncated
        with self.hardware.autocast():
            boundary = self.collector.last_values(ends_truncated)
        next_values = torch.cat([values[1:], boundary[None, :N]])

        ended = to_device(r.terminated | r.truncated, self.device)[:, :, None] & self.episodic
        next_values.masked_fill_(ended, 0.0)
        flat = next_values.view(T * N, K)
        cut = to_device(r.final_index[ends_truncated], self.device)
        flat[cut] = torch.where(self.episodic, boundary[N:], flat[cut])
        return next_values, ended

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> Saved:
        tensors = self.collector.saved() | {"rng.minibatches": self.shuffle.get_state()}
        tensors |= {f"network.{name}": tensor for name, tensor in self.agent.module.state_dict().items()}
        tensors |= moments(self.optimizer, self.parameters)
        for prefix, part in self._parts():
            tensors |= {f"{prefix}{key}": value for key, value in part.state().items()}
        try:
            envs = self.envs.snapshot()
        except NotImplementedError:
            envs = {}
        tensors |= {f"worlds.{key}": value for key, value in envs.items()}
        counters = {"step": self.step, "episodes": self.collector.episodes, "iteration": self.iteration}
        return Saved(tensors, counters, exact=bool(envs))

    def restore(self, saved: Saved) -> None:
        self.collector.begin()
        tensors, counters = saved.tensors, saved.counters
        load_weights(self.agent.module, tensors, "network.")
        restore_moments(self.optimizer, self.parameters, tensors)
        self.collector.step, self.collector.episodes = int(counters["step"]), int(counters["episodes"])
        self.iteration = int(counters["iteration"])
        for name, generator in (("actions", self.collector.noise), ("minibatches", self.shuffle)):
            kept = torch.from_numpy(tensors[f"rng.{name}"])
            if kept.shape == generator.get_state().shape:
                generator.set_state(kept)
            else:  # of another kind of device, whose generators are others
                generator.manual_seed(derive_seed(self.seed, name, self.step))
        for prefix, part in self._parts():
            part.restore(under(tensors, prefix))
        if saved.exact:
            self.envs.restore(under(tensors, "worlds."))
            self.collector.restore(tensors)
        else:
            self.collector.restart()
        self.agent.schedule(self.step)

    def _parts(self) -> list[tuple[str, Stateful]]:
        """What has a state of its own, by the prefix of its names in a checkpoint."""
        parts: dict[str, object] = {f"stream.{index}.": stream for index, stream in enumerate(self.streams)}
        parts["goals."] = self.collector.view.goals
        parts["critic."] = self.critic
        return [(prefix, part) for prefix, part in parts.items() if isinstance(part, Stateful)]

    def facts(self) -> dict[str, Any]:
        return {"episodes": self.collector.episodes, **self.hardware.facts(self.owners[0])}

    def close(self) -> None:
        """Close the envs."""
        self.envs.close()
