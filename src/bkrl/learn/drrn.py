"""Q-learning for agents that read: actions drawn from the softmax of their values, learnt from a memory of steps.

After He et al. (2016), in the form that Carta et al. (2023) trained beside GLAM. One round is a step of all envs; after
some rounds come some updates, each on steps drawn from the memory:

    target = r + γ max_a' Q(s', a'), loss = smooth L1 of Q(s, a) - target

A terminated episode is worth nothing from there on; a truncated one goes on being worth what its last view is. Axes: N
envs, A actions, B steps of an update, W bytes of a view.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from bkrl.agents.drrn import DRRNAgent
from bkrl.agents.networks.adam import Adam
from bkrl.agents.viewer import Viewer, symbols_after, symbols_of
from bkrl.agents.weights import load_weights
from bkrl.core.errors import UsageError
from bkrl.core.prefixes import under
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.views import ViewKeys, Views
from bkrl.data.windows import Transitions
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.on_rollouts import Diverged, moments, restore_moments
from bkrl.learn.protocol import Learner, Saved
from bkrl.learn.replay import Batch, Replay, drawable
from bkrl.learn.rollout import Clock
from bkrl.learn.settings import ReplayConfig
from bkrl.potentials.asked import present
from bkrl.rewards.streams import RewardStream


class DRRN(Learner):
    """A `Learner`. An iteration is `config.num_steps` rounds and the updates between them.

    Args:
        envs: N envs with SAME_STEP autoreset, reset when the first iteration begins.
        agent: who acts.
        stream: what it is paid; must pay transitions that know no history.
        config: hyper-parameters.
        total_steps: env steps to train for; the last iteration may go past it.
        seed: of the envs, the actions and the updates, each from its own named stream.
        hardware: where the agent computes.
        bootstrap_truncated: as for `ActionValueLearner`.
    """

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: DRRNAgent,
        stream: RewardStream,
        config: ReplayConfig,
        *,
        total_steps: int,
        seed: int = 0,
        hardware: Hardware = CPU,
        bootstrap_truncated: bool = True,
    ) -> None:
        if stream.reads.horizon:
            raise UsageError("This learner pays steps without their history; choose a reward that needs none.")
        self.envs, self.agent, self.stream, self.config = envs, agent, stream, config
        self.total_steps, self.seed, self.hardware = total_steps, seed, hardware
        agent.prepare(hardware.device)
        self.module, self.bootstrap_truncated = agent.module, bootstrap_truncated
        self.target: nn.Module | None = copy.deepcopy(self.module) if config.target_every else None
        self.optimizer = Adam(self.module.parameters(), lr=config.learning_rate)
        self.view, self.keys = Viewer(envs, agent), ViewKeys(agent.wants)
        self.replay = Replay(min(config.capacity, total_steps + envs.num_envs * config.num_steps), envs.num_envs)
        self.least = max(config.learning_starts, config.batch_size)
        N, T = envs.num_envs, config.num_steps
        rows = -(-total_steps // (N * T)) * T - T % config.train_every  # before the last update
        room = drawable(min(rows, config.capacity // N), N, config.n_step)
        if room < self.least or config.train_every > T:
            why = "--steps or --capacity is too small for --batch-size and --learning-starts"
            raise UsageError(f"Nothing would ever be learnt: {why}, or --num-steps for --train-every; give it more.")
        self.step = self.episodes = self.updates = 0
        self._seen: Views | None = None  # (N,) rows, what the agents see now
        self._symbols = self._rows = np.zeros(0, np.uint8)

    def iterate(self) -> dict[str, float]:
        """One iteration; returns its metrics. `time/…` are seconds.

        Raises:
            Diverged: a loss or a gradient is not finite.
        """
        clock, c = Clock(), self.config
        self._begin()
        ended: list[np.ndarray] = []
        figures: list[tuple[float, float, float]] = []
        rewards = 0.0
        for round_ in range(c.num_steps):
            paid, finished = self._round(clock)
            rewards += paid
            ended += finished
            if (round_ + 1) % c.train_every == 0 and self.replay.ready(c.n_step) >= self.least:
                # Gradients fade over hundreds of tokens, and numbers below 1e-38 are slow to multiply.
                torch.set_flush_denormal(True)
                try:
                    figures += [self._update() for _ in range(c.gradient_steps)]
                finally:
                    torch.set_flush_denormal(False)
            clock.lap("update")
        metrics = {"rollout/episodes": float(len(ended)), "rollout/reward": rewards / c.num_steps}
        if ended:
            names = ("rollout/success_rate", "rollout/return", "rollout/length")
            metrics |= dict(zip(names, np.mean(ended, axis=0).tolist(), strict=True))
        if figures:
            loss, worth, norm = np.mean(figures, axis=0)
            if not np.isfinite([loss, worth, norm]).all():
                raise Diverged(
                    f"Training diverged at step {self.step:,}: the loss is not finite. The same command would come to "
                    "the same end: begin again with --fresh and a smaller --learning-rate or --reward-scale."
                )
            metrics |= {"drrn/loss": float(loss), "drrn/q": float(worth), "drrn/grad_norm": float(norm)}
        return metrics | clock.metrics()

    def _begin(self) -> None:
        if self._seen is None:
            observations, _ = self.envs.reset(
                seed=derive_seed(self.seed, "worlds", *([self.step] if self.step else []))
            )
            self._look(observations, np.ones(self.envs.num_envs, bool))

    def _look(self, observations: Any, started: np.ndarray) -> None:
        self._symbols, self._seen = symbols_of(observations), self.view(observations, started)
        self._rows = self.keys(self._seen)

    def _round(self, clock: Clock) -> tuple[float, list[np.ndarray]]:
        """One step of all envs: the mean reward, and (success, return, length) of each episode that ended."""
        N, seen, symbols, rows = self.envs.num_envs, self._seen, self._symbols, self._rows
        assert seen is not None
        noise = generator(self.seed, "actions", self.step).gumbel(size=(N, len(self.agent.action_names)))
        actions = self.agent.act(seen, {}, np.zeros(N, bool), noise.astype(np.float32)).actions
        self.view.acted(actions)
        clock.lap("policy")
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        last, finished = None, []
        if len(ended):
            last = self.view.last(infos["final_obs"], ended, seen)
            scores = infos["success"], infos["episode"]["r"], infos["episode"]["l"]
            finished = list(np.stack(scores, 1)[ended].astype(float))
        self._look(observations, terminated | truncated)
        after = self._rows.copy()
        if last is not None:
            after[ended] = self.keys(last)
        if not self.bootstrap_truncated:
            terminated = terminated | truncated
        before, following = (present(one, 0, None, None) for one in (symbols, symbols_after(observations, infos)))
        paid = self.stream.transition_rewards(Transitions(before, actions, rewards, following, terminated))
        self.replay.add(rows, actions, paid, after, terminated, truncated)
        self.step += N
        self.episodes += len(ended)
        clock.lap("env")
        return float(rewards.mean()), finished

    def _update(self) -> tuple[float, float, float]:
        """One gradient step: loss, mean Q and norm of the gradient."""
        c, rng = self.config, generator(self.seed, "replay", self.updates)
        batch = self.replay.sample(c.batch_size, rng, gamma=self.stream.gamma, num_steps=c.n_step)
        targets = self._targets(batch)
        chosen = torch.from_numpy(batch.actions)[:, None].to(targets.device)
        worth = self.agent.values(self.keys.views(batch.seen)).gather(1, chosen)[:, 0]
        loss = nn.functional.smooth_l1_loss(worth, targets)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), c.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.target is not None and self.updates % c.target_every == 0:
            self.target.load_state_dict(self.module.state_dict())
        return loss.item(), worth.mean().item(), norm.item()

    @torch.no_grad()
    def _targets(self, batch: Batch) -> torch.Tensor:
        """(B,) what the actions were worth."""
        best = self.agent.values(self.keys.views(batch.after), self.target).amax(1)
        of = [torch.from_numpy(one).to(best.device) for one in (batch.returns, batch.discounts)]
        return of[0] + of[1] * best

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> Saved:
        self._begin()
        parts: dict[str, dict[str, Any]] = {
            "network": dict(self.module.state_dict()),
            "target": {} if self.target is None else dict(self.target.state_dict()),
            "replay": self.replay.state() if len(self.replay) else {},
            "keys": self.keys.state(),
            "view": self.view.saved(),
        }
        try:
            parts["worlds"] = self.envs.snapshot()
        except NotImplementedError:
            parts["worlds"] = {}
        tensors = {f"{part}.{name}": one for part, found in parts.items() for name, one in found.items()}
        tensors |= moments(self.optimizer, list(self.module.parameters()))
        tensors["symbols"] = self._symbols
        counters = {"step": self.step, "episodes": self.episodes, "updates": self.updates}
        return Saved(tensors, counters, exact=bool(parts["worlds"]))

    def restore(self, saved: Saved) -> None:
        tensors, counters = saved.tensors, saved.counters
        load_weights(self.module, tensors, "network.")
        if self.target is not None:
            load_weights(self.target, tensors, "target.")
        restore_moments(self.optimizer, list(self.module.parameters()), tensors)
        self.step, self.episodes, self.updates = (int(counters[name]) for name in ("step", "episodes", "updates"))
        self.keys.restore(under(tensors, "keys."))
        if replay := under(tensors, "replay."):
            self.replay.restore(replay)
        if not saved.exact:
            self.replay.cut()
            self._begin()
            return
        self.envs.restore(under(tensors, "worlds."))
        self._symbols = tensors["symbols"]
        self._seen = self.view.restored(under(tensors, "view."), self._symbols)
        self._rows = self.keys(self._seen)

    def warnings(self, metrics: dict[str, float]) -> dict[str, str]:
        """What usually means that a run is lost."""
        if metrics.get("drrn/q", 0.0) > 1e3:
            what = f"values have grown to {metrics['drrn/q']:.3g}; a --target-every above 0 keeps them in reach"
            return {"values": what}
        return {}

    def facts(self) -> dict[str, Any]:
        counts = {"episodes": self.episodes, "updates": self.updates}
        return counts | self.hardware.facts(self.module.parameters())

    def close(self) -> None:
        """Close the envs."""
        self.envs.close()
