"""Proximal policy optimisation (Schulman et al., 2017) on any list of reward streams, read from top to bottom.

One iteration is `rollout` (T steps of N worlds) → `rewards` (each stream pays) → `gae` (advantages, K streams at once)
→ `update` (epochs of minibatches). Storage is allocated once; axes are named at allocation: T steps, N worlds,
K reward streams, A actions. Observations stay uint8 until they are inside the network's encoder.

A terminated episode is worth 0 from there on; a truncated one goes on being worth V(its true last observation).
Streams that are not episodic (`RewardStream.episodic`) run on into the next episode.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bkrl.agents.networks import ActorCritic
from bkrl.core.config import PPOConfig
from bkrl.core.errors import RunFailed
from bkrl.core.seeds import derive_seed
from bkrl.data.distinct import Repeats
from bkrl.data.windows import Rollout
from bkrl.envs.vector import WorldVectorEnv
from bkrl.learn.hardware import CPU, Hardware
from bkrl.rewards.streams import LearningStream, MeasuringStream, RewardStream


class Diverged(RunFailed):
    """A loss, a gradient or the network is no longer finite; nothing after the last checkpoint can be trusted."""


class Adam(torch.optim.Adam):
    """Adam without the decorators that speak to torch's compiler: those load it, which takes a second.

    No optimiser is compiled here; where there is nothing to unwrap, this is `torch.optim.Adam` itself.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class PPO:
    """The worlds, the network, the storage and the optimiser of one run.

    Args:
        envs: N worlds with SAME_STEP autoreset. Reset here, world i with seed `derive_seed(seed, "worlds") + i`.
        network: has one value head for each stream.
        streams: what the policy is paid in.
        config: hyper-parameters.
        total_steps: world steps to train for; the last iteration may go past it by less than one rollout.
        bootstrap_truncated: give an episode that was cut off the value of its last observation; without it, as in the
            published code, a time limit counts as a true end (`train-rs --compat b10`).
        seed: of the worlds, the action noise and the minibatches, each from its own named stream.
        hardware: where the network lives, and in which precision it computes.
        view: when observations are dicts, the key the policy sees; streams always see `"symbolic"`.
    """

    def __init__(
        self,
        envs: WorldVectorEnv,
        network: ActorCritic,
        streams: Sequence[RewardStream],
        config: PPOConfig,
        *,
        total_steps: int,
        bootstrap_truncated: bool = True,
        seed: int = 0,
        hardware: Hardware = CPU,
        view: str = "symbolic",
    ) -> None:
        T, N, K = config.num_steps, config.num_envs, len(streams)
        if envs.num_envs != N:
            raise ValueError(f"{envs.num_envs} worlds for a configuration of {N}")
        self.envs, self.streams, self.config, self.view = envs, list(streams), config, view
        self.total_steps, self.seed, self.bootstrap_truncated = total_steps, seed, bootstrap_truncated
        self.hardware, self.device = hardware, hardware.device
        self.network = network.to(self.device)
        if hardware.compile:
            self.network.learnt.compile(dynamic=True)  # at its first call; the weights stay its own
        A = int(envs.single_action_space.n)  # type: ignore[attr-defined]

        first, _ = envs.reset(seed=derive_seed(seed, "worlds"))
        symbols, seen = self._views(first)
        H = max((stream.horizon for stream in streams), default=0)

        # Storage, axes (T, N, K)
        self.rollout_ = Rollout(
            horizon=H,
            observations=np.zeros((H + T + 1, N, *symbols.shape[1:]), np.uint8),
            actions=np.zeros((H + T, N), np.int64),
            ages=np.zeros((T + 1, N), np.int32),
            rewards=np.zeros((T, N), np.float32),
            terminated=np.zeros((T, N), bool),
            truncated=np.zeros((T, N), bool),
            final_index=np.zeros(0, np.int64),
            final_observations=np.zeros((0, *symbols.shape[1:]), np.uint8),
            distances=None if envs.distances() is None else np.zeros((T + 1, N), np.float32),
        )
        self.rollout_.observations[H + T] = symbols  # the row the first rollout begins with
        # What the policy sees: the same memory, unless the worlds give it a picture of its own.
        self.seen = (
            self.rollout_.observations[H:] if seen is symbols else np.zeros((T + 1, N, *seen.shape[1:]), np.uint8)
        )
        self.seen[T] = seen
        self.final_seen = np.zeros((0, *seen.shape[1:]), np.uint8)
        # Repeats are looked up on the processor; a GPU computes them sooner than it hears that they are some.
        self.repeats = Repeats(self.seen[:T]) if self.device.type == "cpu" else None
        self.logits = torch.zeros(T, N, A, device=self.device)
        self.values = torch.zeros(T, N, K, device=self.device)
        self.rewards_ = torch.zeros(T, N, K, device=self.device)

        self.gamma = torch.tensor([stream.gamma for stream in streams], device=self.device)
        self.coef = torch.tensor([stream.coef for stream in streams], device=self.device)
        self.episodic = torch.tensor([stream.episodic for stream in streams], device=self.device)
        self.learners = [stream for stream in streams if isinstance(stream, LearningStream)]
        # Gradients are clipped for each owner apart: a predictor's early errors must not slow the policy down.
        owners: list[ActorCritic | LearningStream] = [self.network, *self.learners]
        self.groups = [[p for p in o.parameters() if p.requires_grad] for o in owners]
        self.parameters = [p for group in self.groups for p in group]
        self.optimizer = Adam(self.parameters, lr=config.learning_rate, eps=1e-5, fused=True)
        self.noise = torch.Generator(self.device).manual_seed(derive_seed(seed, "actions"))
        self.shuffle = torch.Generator(self.device).manual_seed(derive_seed(seed, "minibatches"))

        self.step = 0  # world steps taken
        self.episodes = 0  # episodes finished
        self.iteration = 0
        # The value loss of a critic that says 0 everywhere, on the rewards of the last rollout.
        self.ignorant_loss = torch.zeros((), dtype=torch.float64, device=self.device)

    @property
    def done(self) -> bool:
        """Whether `total_steps` have been taken."""
        return self.step >= self.total_steps

    def iterate(self) -> dict[str, float]:
        """One iteration; returns its metrics. `time/…` are seconds.

        Raises:
            Diverged: a loss, a gradient or the network that they leave is not finite.
        """
        clock = _Clock()
        self.network.at_step(self.step)
        with self.hardware.autocast():  # around the whole rollout, so that the weights are converted once
            metrics = self.rollout(clock)
        for k, stream in enumerate(self.streams):
            with np.errstate(over="ignore", invalid="ignore"):  # a reward that is not finite ends in `Diverged`
                rewards = stream.rewards(self.rollout_)
            self.rewards_[:, :, k] = torch.from_numpy(rewards).to(self.device)
            if isinstance(stream, MeasuringStream):
                metrics |= stream.metrics()
        clock.lap("potential")
        advantages, returns = self.advantages()
        metrics |= self.update(advantages, returns)
        clock.lap("update")
        return metrics | clock.metrics()

    # ---------------------------------------------------------------------------------------------------- rollout

    @torch.no_grad()
    def rollout(self, clock: _Clock) -> dict[str, float]:
        """T steps of every world with the current policy, written into the storage."""
        T, H, r = self.config.num_steps, self.rollout_.horizon, self.rollout_
        # The last H + 1 rows of the previous rollout are the history and the first observation of this one.
        r.observations[: H + 1] = r.observations[T : T + H + 1].copy()
        r.actions[:H] = r.actions[T : T + H].copy()
        r.ages[0] = r.ages[T]
        if self.seen.base is not r.observations:
            self.seen[0] = self.seen[T]
        seen = torch.from_numpy(self.seen)
        # argmax(logits + Gumbel noise) is a sample of the softmax; the whole rollout's noise is drawn in one call.
        gumbel = torch.empty_like(self.logits).exponential_(generator=self.noise).log_().neg_()
        if r.distances is not None:
            r.distances[0] = self.envs.distances()
        finals: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        final_distances: list[np.ndarray] = [np.zeros(0, np.float32)]
        episode_returns: list[np.ndarray] = []
        episode_lengths: list[np.ndarray] = []
        successes = 0
        if self.repeats is not None:
            self.repeats.clear()

        for t in range(T):
            self._look(t, seen[t])
            r.actions[H + t] = (self.logits[t] + gumbel[t]).argmax(1).cpu().numpy()
            clock.lap("policy")

            observations, rewards, terminated, truncated, infos = self.envs.step(r.actions[H + t])
            symbols, view = self._views(observations)
            r.observations[H + t + 1] = symbols
            if view is not symbols:
                self.seen[t + 1] = view
            r.rewards[t], r.terminated[t], r.truncated[t] = rewards, terminated, truncated
            np.add(r.ages[t], 1, out=r.ages[t + 1])
            if r.distances is not None:
                r.distances[t + 1] = self.envs.distances()
            if "_final_obs" in infos:
                ended = np.flatnonzero(infos["_final_obs"])
                symbols, view = self._views(infos["final_obs"])
                finals.append((t, ended, symbols[ended], view[ended]))
                if r.distances is not None:
                    final_distances.append(infos["final_distance"][ended])
                r.ages[t + 1, ended] = 0
                episode_returns.append(infos["episode"]["r"][ended])
                episode_lengths.append(infos["episode"]["l"][ended])
                successes += int(np.count_nonzero(infos["success"][ended]))
            clock.lap("env")

        N = r.num_envs
        empty = np.zeros(0, np.int64)
        r.final_index = np.concatenate([empty, *(t * N + ended for t, ended, _, _ in finals)])
        if finals:
            r.final_observations = np.concatenate([symbols for _, _, symbols, _ in finals])
            self.final_seen = np.concatenate([view for _, _, _, view in finals])
        else:
            r.final_observations, self.final_seen = r.final_observations[:0], self.final_seen[:0]
        if r.distances is not None:
            r.final_distances = np.concatenate(final_distances)
        self.step += T * N
        self.episodes += len(r.final_index)
        metrics = {"rollout/episodes": float(len(r.final_index)), "rollout/reward": float(r.rewards.mean())}
        if finals:
            metrics["rollout/return"] = float(np.concatenate(episode_returns).mean())
            metrics["rollout/length"] = float(np.concatenate(episode_lengths).mean())
            metrics["rollout/success_rate"] = successes / len(r.final_index)
        return metrics

    def _look(self, t: int, seen: Tensor) -> None:
        """Logits and values of row t, where (N, ...) `seen` is what the policy sees."""
        if self.repeats is None:
            self.logits[t], self.values[t] = self.network(seen.to(self.device))
            return
        # The policy stands still during a rollout: what it has seen before in it, it need not look at again.
        origins = self.repeats.add(t)
        new = torch.from_numpy(np.flatnonzero(origins >= t * len(origins)))
        if len(new):
            self.logits[t, new], self.values[t, new] = self.network(seen[new])
        index = torch.from_numpy(origins)
        self.logits[t] = self.logits.flatten(0, 1)[index]
        self.values[t] = self.values.flatten(0, 1)[index]

    # -------------------------------------------------------------------------------------------------------- gae

    @torch.no_grad()
    def advantages(self) -> tuple[Tensor, Tensor]:
        """Advantages and returns of the stored rollout, both (T, N, K)."""
        T, N, K = self.values.shape
        r = self.rollout_
        # One forward for every value that was not stored: the bootstrap row and the ends that were cut off.
        ends_truncated = r.truncated.reshape(-1)[r.final_index] & ~r.terminated.reshape(-1)[r.final_index]
        ends_truncated &= self.bootstrap_truncated
        last = torch.from_numpy(np.concatenate([self.seen[T], self.final_seen[ends_truncated]]))
        with self.hardware.autocast():
            boundary = self.network.learnt(last.to(self.device))[1]
        next_values = torch.cat([self.values[1:], boundary[None, :N]])

        terminated = torch.from_numpy(r.terminated).to(self.device)
        truncated = torch.from_numpy(r.truncated).to(self.device)
        ended = (terminated | truncated)[:, :, None] & self.episodic
        next_values[ended] = 0.0
        flat = next_values.view(T * N, K)
        cut = torch.from_numpy(r.final_index[ends_truncated]).to(self.device)
        flat[cut] = torch.where(self.episodic, boundary[N:], flat[cut])
        advantages = gae(self.rewards_, self.values, next_values, ended, self.gamma, self.config.gae_lambda)
        nothing = torch.zeros_like(self.values)
        paid = gae(self.rewards_, nothing, nothing, ended, self.gamma, 1.0)
        self.ignorant_loss = 0.5 * paid.double().square().sum(-1).mean()
        return advantages, advantages + self.values

    # ----------------------------------------------------------------------------------------------------- update

    def update(self, advantages: Tensor, returns: Tensor) -> dict[str, float]:
        """Epochs of clipped policy and value steps on the stored rollout."""
        c, T = self.config, self.config.num_steps
        if c.anneal_lr:
            remaining = 1.0 - min(1.0, self.iteration * self.values[:, :, 0].numel() / self.total_steps)
            self.optimizer.param_groups[0]["lr"] = c.learning_rate * remaining
        b_obs = torch.from_numpy(self.seen[:T]).flatten(0, 1).to(self.device)
        H = self.rollout_.horizon
        b_actions = torch.from_numpy(self.rollout_.actions[H : H + T]).flatten().to(self.device)
        b_origins = None if self.repeats is None else torch.from_numpy(self.repeats.origins)
        b_shift = self._shift(b_obs, b_origins)
        b_logp = _log_prob(self.logits.flatten(0, 1), b_actions)
        b_values, b_returns = self.values.flatten(0, 1), returns.flatten(0, 1)
        b_advantages = (advantages * self.coef).sum(-1).flatten()
        b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)

        size = len(b_obs) // c.num_minibatches
        figures: list[Tensor] = []
        norms: list[Tensor] = []
        epochs = 0
        for _ in range(c.update_epochs):
            order = torch.randperm(len(b_obs), generator=self.shuffle, device=self.device)
            for mb in order.split(size):
                if b_origins is None:
                    which, repeats = mb, None
                else:
                    which, repeats = b_origins[mb].unique(return_inverse=True)
                seen = b_obs.index_select(0, which)  # ten times as quick as b_obs[which]
                with self.hardware.autocast():
                    logits, values = self.network.learnt(seen)
                if b_shift is not None:
                    logits = logits + b_shift[which]
                if repeats is not None:
                    logits, values = logits.index_select(0, repeats), values.index_select(0, repeats)
                log_probs = logits.log_softmax(-1)
                log_ratio = log_probs.gather(1, b_actions[mb, None]).squeeze(1) - b_logp[mb]
                ratio = log_ratio.exp()
                entropy = -(log_probs.exp() * log_probs).sum(-1).mean()

                advantage = b_advantages[mb]
                clipped = ratio.clamp(1 - c.clip_coef, 1 + c.clip_coef)
                policy_loss = -torch.minimum(advantage * ratio, advantage * clipped).mean()

                value_loss = 0.5 * (values - b_returns[mb]).square().sum(-1).mean()

                loss = policy_loss + c.vf_coef * value_loss - c.ent_coef * entropy
                for learner in self.learners:
                    loss = loss + learner.loss(mb)
                self.optimizer.zero_grad()
                loss.backward()
                clipped_norms = [nn.utils.clip_grad_norm_(group, c.max_grad_norm) for group in self.groups]
                norms.append(torch.stack(clipped_norms))
                self.optimizer.step()
                with torch.no_grad():
                    far = ((ratio - 1).abs() > c.clip_coef).float().mean()
                    kl = (ratio - 1 - log_ratio).mean()  # low-variance estimate, http://joschu.net/blog/kl-approx.html
                    figures.append(torch.stack([loss, policy_loss, value_loss, entropy, kl, far]))
            epochs += 1
            if c.target_kl > 0 and figures[-1][4].item() > c.target_kl:
                break
        self.iteration += 1

        table, grad_norm = torch.stack(figures), torch.stack(norms)
        if not bool(torch.isfinite(table).all() & torch.isfinite(grad_norm).all()):
            raise Diverged(self._diagnosis(self._broken(table, grad_norm)))
        self._check_network()
        mean, variance = table.mean(0).tolist(), b_returns[:, 0].var()
        unexplained = (b_returns[:, 0] - b_values[:, 0]).var() / variance
        return {
            "ppo/loss": mean[0],
            "ppo/policy_loss": mean[1],
            "ppo/value_loss": mean[2],
            "ppo/entropy": mean[3],
            "ppo/approx_kl": mean[4],
            "ppo/clip_fraction": mean[5],
            "ppo/grad_norm": float(grad_norm[:, 0].mean()),
            "ppo/explained_variance": float(1 - unexplained) if float(variance) > 0 else 0.0,
            "ppo/learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "ppo/epochs": float(epochs),
        }

    @torch.no_grad()
    def _shift(self, b_obs: Tensor, b_origins: Tensor | None) -> Tensor | None:
        """(T * N, A) what stands still in the logits of all epochs, at the origins of repeats; None: nothing."""
        if self.network.learnt is self.network:
            return None
        looked_at = torch.arange(len(b_obs), device=self.device) if b_origins is None else b_origins.unique()
        with self.hardware.autocast():
            shift = self.network.shift(b_obs[looked_at])
        if shift is None:
            return None
        return shift.new_zeros(len(b_obs), shift.shape[1]).index_copy_(0, looked_at, shift)

    @torch.no_grad()
    def _check_network(self) -> None:
        """Diverged, if the last step left weights that are not finite, or that say something too large to learn from.

        The losses were taken before that step, so they do not show what it did.
        """
        with self.hardware.autocast():
            logits, values = self.network.learnt(torch.from_numpy(self.seen[-1]).to(self.device))
        said = torch.cat([logits, values], 1).square()  # the value loss squares what it is told
        finite = torch.stack([p.isfinite().all() for p in self.parameters]).all()
        if not bool(finite & said.isfinite().all()):
            huge = "logits and values after the update are too large to learn from"
            raise Diverged(self._diagnosis(huge if bool(finite) else "weights after the update are not finite"))

    def _broken(self, table: Tensor, grad_norm: Tensor) -> str:
        """What was not finite first; of several in one minibatch the one that the others are computed from."""
        loss, policy_loss, value_loss, entropy, kl, _ = table.T
        named = {
            "entropy": entropy,
            "value loss": value_loss,
            "policy loss": policy_loss,
            "KL": kl,
            "loss": loss,
            "gradient": grad_norm.sum(1),
        }
        broken = {
            name: int((~column.isfinite()).nonzero()[0])
            for name, column in named.items()
            if not column.isfinite().all()
        }
        first = min(broken, key=broken.__getitem__)
        return f"{first} of minibatch {broken[first] + 1} of {len(table)} is not finite"

    def _diagnosis(self, what: str) -> str:
        """What is wrong, and how large the rewards and values were that it was computed from."""
        rewards, values = float(self.rewards_.abs().max()), float(self.values.abs().max())
        return (
            f"Training diverged at step {self.step:,}: the {what} (largest reward {rewards:.3g}, largest value "
            f"{values:.3g}). The same command would come to the same end: begin again with --fresh and a smaller "
            "--learning-rate or --reward-scale."
        )

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> tuple[dict[str, Tensor | np.ndarray], dict[str, Any]]:
        """Everything that the next iteration depends on, apart from the worlds: tensors by name, and counters."""
        r = self.rollout_
        tensors: dict[str, Tensor | np.ndarray] = {
            f"network.{name}": tensor for name, tensor in self.network.state_dict().items()
        }
        for index, parameter in enumerate(self.parameters):
            for key, tensor in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{index}.{key}"] = tensor
        T, H = self.config.num_steps, r.horizon
        tensors |= {
            "rollout.observations": r.observations[T : T + H + 1],
            "rollout.actions": r.actions[T : T + H],
            "rollout.ages": r.ages[T],
            "rollout.seen": self.seen[T],
            "rng.actions": self.noise.get_state(),
            "rng.minibatches": self.shuffle.get_state(),
        }
        return tensors, {"step": self.step, "episodes": self.episodes, "iteration": self.iteration}

    def restore(self, tensors: Mapping[str, np.ndarray], counters: Mapping[str, Any], *, worlds: bool) -> None:
        """Take back what `state` returned.

        Args:
            tensors, counters: from `state`.
            worlds: whether the worlds themselves go back too. If not, the rows kept belong to episodes that no longer
                run, and are dropped; call `restart_worlds`.
        """
        network = {
            k.removeprefix("network."): torch.from_numpy(v) for k, v in tensors.items() if k.startswith("network.")
        }
        self.network.load_state_dict(network)
        for index, parameter in enumerate(self.parameters):
            prefix = f"optimizer.{index}."
            state = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in tensors.items() if k.startswith(prefix)}
            if state:
                self.optimizer.state[parameter] = {k: v.clone().to(self.device) for k, v in state.items()}
        self.step, self.episodes = int(counters["step"]), int(counters["episodes"])
        for name, generator in (("actions", self.noise), ("minibatches", self.shuffle)):
            kept = torch.from_numpy(tensors[f"rng.{name}"])
            if kept.shape == generator.get_state().shape:
                generator.set_state(kept)
            else:  # of another kind of device, whose generators are others
                generator.manual_seed(derive_seed(self.seed, name, self.step))
        self.iteration = int(counters["iteration"])
        if worlds:
            T, H, r = self.config.num_steps, self.rollout_.horizon, self.rollout_
            r.observations[T : T + H + 1] = tensors["rollout.observations"]
            r.actions[T : T + H] = tensors["rollout.actions"]
            r.ages[T] = tensors["rollout.ages"]
            self.seen[T] = tensors["rollout.seen"]

    def restart_worlds(self) -> None:
        """Begin fresh episodes in worlds that could not be put back, with seeds that belong to this step."""
        first, _ = self.envs.reset(seed=derive_seed(self.seed, "worlds", self.step))
        symbols, seen = self._views(first)
        T, H = self.config.num_steps, self.rollout_.horizon
        self.rollout_.observations[H + T], self.seen[T] = symbols, seen
        self.rollout_.ages[T] = 0

    def _views(self, observations: Any) -> tuple[np.ndarray, np.ndarray]:
        """What the streams see and what the policy sees; one and the same array unless the worlds give both."""
        if isinstance(observations, dict):
            return observations["symbolic"], observations[self.view]
        return observations, observations


def gae(
    rewards: Tensor, values: Tensor, next_values: Tensor, ended: Tensor, gamma: Tensor, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimation (Schulman et al., 2016) for K reward streams at once.

    δ_t = r_t + γ V(s_{t+1}) − V(s_t);  Â_t = δ_t + γλ Â_{t+1}, where the sum stops at steps that ended an episode.

    Args:
        rewards, values: (T, N, K).
        next_values: (T, N, K), the value of what follows action t: 0 after termination, the value of the true last
            observation after truncation.
        ended: (T, N, K) bool, whether the return of that stream stops at this step.
        gamma: (K,).
        gae_lambda: λ.

    Returns:
        (T, N, K).
    """
    deltas = rewards + gamma * next_values - values
    decay = gamma * gae_lambda * (~ended)
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = torch.addcmul(deltas[t], decay[t], running, out=advantages[t])
    return advantages


def _log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(1, actions[:, None]).squeeze(1)


class _Clock:
    """Seconds spent in each phase of an iteration."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._seconds = dict.fromkeys(("env", "policy", "potential", "update"), 0.0)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[phase] += now - self._since
        self._since = now

    def metrics(self) -> dict[str, float]:
        return {f"time/{phase}": seconds for phase, seconds in self._seconds.items()}
