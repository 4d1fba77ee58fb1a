"""Proximal policy optimisation (Schulman et al., 2017) on any list of reward streams, read from top to bottom.

One iteration is `Collector.collect` (T steps of N envs) → `pay` (each stream pays) → `advantages` (K streams at once)
→ `update` (epochs of minibatches). Axes are named at allocation: T steps, N envs, K reward streams, A actions.

A terminated episode is worth 0 from there on; a truncated one goes on being worth V(its true last observation).
Streams that are not episodic (`RewardStream.episodic`) run on into the next episode.

An agent without memory learns from minibatches of steps. An agent with a memory learns from sequences: the rollouts of
some of the envs, whole or in pieces, computed again from what it remembered before them, so that gradients reach back
to there and no further (truncated backpropagation through time).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bkrl.agents.networks.adam import Adam
from bkrl.agents.networks.layers import to_device
from bkrl.agents.protocol import TrainableAgent
from bkrl.core.config import PPOConfig
from bkrl.core.errors import UsageError
from bkrl.core.registry import did_you_mean
from bkrl.core.reporter import percent
from bkrl.envs.vector import BaseVectorEnv
from bkrl.learn.losses import StepBatch, Weights, by_torch, divergence, explained_variance, losses
from bkrl.learn.on_rollouts import Diverged, RolloutLearner
from bkrl.learn.protocol import Saved
from bkrl.rewards.streams import RewardStream

if TYPE_CHECKING:
    from bkrl.learn.critic import CriticLearner
    from bkrl.learn.imitation import Imitation

_DROWNING = 1e4
"""A value loss beside which the policy's, about 1 whatever the rewards are, moves nothing."""


class PPO(RolloutLearner):
    """Trains an agent with a policy.

    Args:
        envs, streams: as for `RolloutLearner`.
        agent: has one value for each stream.
        config: hyper-parameters.
        bootstrap_truncated: give an episode that was cut off the value of its last observation; without it, as in the
            published code, a time limit counts as a true end (`train-rs --compat b10`).
        broadcast_values: hold each value against all returns of its minibatch (`train-rs --compat g7`).
        imitation: a further loss of the same minibatches.
        critic: fits the agent's values, which PPO then does not train; the policy waits until it is ready.
        how: total_steps, seed, hardware, goals, and for `imitation` teacher, as for `RolloutLearner`.

    Raises:
        UsageError: settings that do not fit the agent or the streams.
    """

    critic: CriticLearner | None

    def __init__(
        self,
        envs: BaseVectorEnv,
        agent: TrainableAgent,
        streams: Sequence[RewardStream],
        config: PPOConfig,
        *,
        bootstrap_truncated: bool = True,
        broadcast_values: bool = False,
        imitation: Imitation | None = None,
        critic: CriticLearner | None = None,
        **how: Any,
    ) -> None:
        super().__init__(
            envs,
            agent,
            streams,
            num_steps=config.num_steps,
            num_values=len(streams),
            recurrence=config.recurrence,
            **how,
        )
        if envs.num_envs != config.num_envs:
            raise ValueError(f"{envs.num_envs} envs for a configuration of {config.num_envs}")
        self.config, self.bootstrap_truncated, self.broadcast_values = config, bootstrap_truncated, broadcast_values
        self.imitation, self.critic = imitation, critic
        if broadcast_values and config.accumulate > 1:
            raise UsageError(
                "--compat g7 holds each value against a whole minibatch, which is not computed in parts: leave out "
                "--accumulate."
            )
        self.memory = bool(self.collector.state)
        sequences = envs.num_envs * config.num_steps // self.collector.recurrence
        if self.memory and sequences % config.num_minibatches:
            raise UsageError(
                f"An agent with a memory learns from whole sequences, and {sequences} of them do not divide into "
                f"{config.num_minibatches} minibatches; change --num-envs, --num-minibatches or --recurrence."
            )
        groups = agent.groups() | self.own
        self.rates = dict.fromkeys(groups, config.learning_rate) | _rates(config.group_learning_rates, groups)
        self.optimizer = Adam(
            [{"params": group, "lr": self.rates[name]} for name, group in groups.items()], eps=1e-5, fused=True
        )
        self._ignorant = torch.zeros((), dtype=torch.float64, device=self.device)
        self._ignorant_loss: float | None = 0.0  # None: to be read there
        # Steps that led beyond the target KL are taken back, and the next ones are shorter by this factor.
        self.caution = 1.0

    def learn(self) -> dict[str, float]:
        """Advantages, then epochs of minibatches; a critic of its own learns after the update.

        Until that critic is ready, the policy learns from its teacher alone, and waits where that has no weight.
        """
        advantages, returns = self.advantages()
        critic = self.critic
        if critic is None:
            return self.update(advantages, returns)
        figures: dict[str, float] = {}
        if critic.ready or (self.imitation is not None and self.imitation.begin(self.collector)):
            figures = self.update(advantages if critic.ready else torch.zeros_like(advantages), returns)
        self.iteration += not figures
        values, (next_values, ended) = self.collector.values, self.followed
        sums = gae(self.rewards, values, next_values, ended, self.gamma, 1.0) + values
        ends, nothing = torch.where(ended, next_values, 0.0), torch.zeros_like(values)
        ends[-1] = next_values[-1]  # what the critic says of where returns stop, a time limit included
        known = (gae(nothing, nothing, ends, ended, self.gamma, 1.0) == 0).all(-1)
        return figures | critic.learn(self.collector, values, sums, known, self.hardware)

    @property
    def ignorant_loss(self) -> float:
        """A rollout's value loss of a critic that says 0: the largest so far, since values outlive rewards a while."""
        if self._ignorant_loss is None:
            self._ignorant_loss = float(self._ignorant)
        return self._ignorant_loss

    # -------------------------------------------------------------------------------------------------------- gae

    @torch.no_grad()
    def advantages(self) -> tuple[Tensor, Tensor]:
        """Advantages and returns of the stored rollout, both (T, N, K)."""
        values = self.collector.values
        self.followed = next_values, ended = self.next_values(self.bootstrap_truncated)
        advantages = gae(self.rewards, values, next_values, ended, self.gamma, self.config.gae_lambda)
        nothing = torch.zeros_like(values)
        paid = gae(self.rewards, nothing, nothing, ended, self.gamma, 1.0)
        self._ignorant = self._ignorant.fmax(0.5 * paid.double().square().sum(-1).mean())
        self._ignorant_loss = None
        return advantages, advantages + values

    # ----------------------------------------------------------------------------------------------------- update

    def update(self, advantages: Tensor, returns: Tensor) -> dict[str, float]:
        """Epochs of clipped policy and value steps on the stored rollout."""
        c, r = self.config, self.collector.rollout
        remaining = 1.0 - min(1.0, self.iteration * r.rewards.size / self.total_steps) if c.anneal_lr else 1.0
        for group, rate in zip(self.optimizer.param_groups, self.rates.values(), strict=True):
            group["lr"] = rate * remaining * self.caution
        actions = to_device(r.actions, self.device).flatten()
        summed = (advantages * self.coef).sum(-1).flatten()
        if c.norm_adv:
            summed = (summed - summed.mean()) / (summed.std() + 1e-8)
        log_probs = self.collector.logits.flatten(0, 1).log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
        taken = StepBatch(actions, log_probs, summed, self.collector.values.flatten(0, 1), returns.flatten(0, 1))
        clip_value = c.clip_coef if c.clip_vloss else None
        weights = Weights(c.clip_coef, clip_value, c.vf_coef, c.ent_coef, self.broadcast_values)
        # Where the kernel is no large gain, runs keep the last digits that they had before there was one.
        compute = by_torch if self.collector.looks_apart is None else losses
        # A teacher is to move the policy far: until its weight is 0 PPO has its clipping alone.
        taught = self.imitation is not None and self.imitation.begin(self.collector)
        target = 0.0 if taught else c.target_kl
        count, look, parted = self._sequences() if self.memory else self._steps()
        view = self._numbers()
        figures: list[Tensor] = []
        norms: list[Tensor] = []
        shuffled = partial(torch.randperm, generator=self.shuffle, device=self.device)
        epochs, far, before = 0, False, None
        for _ in range(c.update_epochs):
            order = shuffled(count)
            if view is not None:  # views are shuffled, and the steps of each
                order = order[shuffled(count)[view][order].argsort(stable=True)]
            for minibatch in order.split(count // c.num_minibatches):
                self.optimizer.zero_grad()
                parts = []
                for part in parted(minibatch):
                    mb, logits, values = look(part)
                    loss, said = compute(logits, values, taken, mb, weights)
                    for learner in self.learners.values():  # steps of sequences come in their order: they are mixed
                        loss = loss + learner.loss(mb[shuffled(len(mb))] if self.memory else mb)
                    if self.imitation is not None:
                        loss = loss + self.imitation.loss(mb, logits)
                    share = len(part) / len(minibatch)
                    (loss if share == 1 else loss * share).backward()
                    parts.append(share * torch.cat([loss.detach()[None], said]))
                figures.append(parts[0] if len(parts) == 1 else torch.stack([self.gamma.new_zeros(6), *parts]).sum(0))
                norms.append(torch.stack([nn.utils.clip_grad_norm_(owner, c.max_grad_norm) for owner in self.owners]))
                if far := target > 0 and figures[-1][4].item() > target:
                    break
                before = [p.detach().clone() for p in self.parameters] if target > 0 else None
                self.optimizer.step()
            if far:
                break
            epochs += 1
        if before is not None:
            self._keep_to_target(far, before, look, order[: count // c.num_minibatches], taken)
        self.iteration += 1

        table, grad_norm = torch.stack(figures), torch.stack(norms)
        explained = explained_variance(taken.values[:, 0], taken.returns[:, 0])
        sound = [table.isfinite().all() & grad_norm.isfinite().all(), *self._sound(look, order)]
        unread = [*sound, self._ignorant, explained, grad_norm[:, 0].mean(), *table.mean(0)]
        # All at once: each reading of one would wait for the GPU.
        numbers = torch.stack([figure.double() for figure in unread]).tolist()
        all_finite, weights_finite, said_finite, self._ignorant_loss, variance, norm, *mean = numbers
        if not all_finite:
            raise Diverged(self._diagnosis(_broken(table, grad_norm)))
        if not (weights_finite and said_finite):
            huge = "logits and values after the update are too large to learn from"
            raise Diverged(self._diagnosis(huge if weights_finite else "weights after the update are not finite"))
        return {
            "ppo/loss": mean[0],
            "ppo/policy_loss": mean[1],
            "ppo/value_loss": mean[2],
            "ppo/entropy": mean[3],
            "ppo/approx_kl": mean[4],
            "ppo/clip_fraction": mean[5],
            "ppo/grad_norm": norm,
            "ppo/explained_variance": variance,
            "ppo/learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "ppo/epochs": float(epochs),
            **({"ppo/caution": self.caution} if c.target_kl > 0 else {}),
            **(self.imitation.metrics() if self.imitation is not None else {}),
        }

    @torch.no_grad()
    def _keep_to_target(self, far: bool, before: list[Tensor], look: _Look, order: Tensor, taken: StepBatch) -> None:
        """Take the last step back if it led beyond the target KL.

        Adam's steps have a length of their own, so one may pass the target by far. As in Schulman et al. (2017, §4),
        what comes next is halved after that, and grows again while updates stay below half of the target.

        Args:
            far: whether a minibatch after the last step has shown that already.
            before: the weights before that step.
            look: computes a minibatch.
            order: the steps that show where the last step led.
            taken: actions and their log-probabilities.
        """
        kl = math.inf
        if not far:  # estimated as in the loss
            where, logits, _ = look(order)
            now = logits.log_softmax(-1).gather(1, taken.actions[where][:, None]).squeeze(1)
            kl = float(divergence(now - taken.log_probs[where]))
        if kl > self.config.target_kl:
            for parameter, weights in zip(self.parameters, before, strict=True):
                parameter.copy_(weights)
            self.caution /= 2
        elif kl < self.config.target_kl / 2:
            self.caution = min(1.0, 1.5 * self.caution)

    def _split(self, minibatch: Tensor) -> Sequence[Tensor]:
        return minibatch.split(-(-len(minibatch) // self.config.accumulate))

    def _numbers(self) -> Tensor | None:
        """(S,) the number of each step's view, where steps of one view are learnt from beside each other."""
        repeats = self.collector.repeats
        if repeats is None or self.memory or not self.agent.costly:
            return None
        return torch.from_numpy(repeats.numbers)

    def _steps(self) -> tuple[int, _Look, _Parted]:
        """How many steps there are to learn from, what the agent says now of some of them, and a minibatch in parts."""
        c = self.collector
        views = c.views[: c.num_steps].flat()
        count, places = len(views), None
        if c.repeats is not None:  # views that repeat are looked at once in a minibatch, too
            views, places = views[c.repeats.first], torch.from_numpy(c.repeats.numbers)
        with torch.no_grad(), self.hardware.autocast():
            inputs = self.agent.inputs(views)

        def look(mb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            which, back = (mb, None) if places is None else places[mb].unique(return_inverse=True)
            rows = {name: tensor.index_select(0, which) for name, tensor in inputs.items()}  # ten times as quick as []
            with self.hardware.autocast():
                logits, values, _ = self.agent.forward(rows, {}, None)
            if back is not None:
                logits, values = logits.index_select(0, back), values.index_select(0, back)
            return mb, logits, values

        def parted(mb: Tensor) -> Sequence[Tensor]:
            if self.config.accumulate > 1 or self.broadcast_values:
                return self._split(mb)
            return [mb[near] for near in self.agent.together(inputs, mb if places is None else places[mb])]

        return count, look, parted

    def _sequences(self) -> tuple[int, _Look, _Parted]:
        """The same of sequences of R steps.

        Sequence c * N + n is env n in the steps from c * R on. With R = 20 and N = 64, sequence 65 begins in env 1 with
        step t = 20, which is number t * N + n = 1,281 of all.
        """
        c = self.collector
        T, N, R = c.num_steps, self.config.num_envs, c.recurrence

        def cut(rows: Tensor) -> Tensor:
            """(T * N, ...) → (R, T/R * N, ...)."""
            return rows.unflatten(0, (T // R, R, N)).transpose(0, 1).flatten(1, 2)

        started = cut(to_device(c.rollout.ages[:T] == 0, self.device).flatten())
        steps = cut(torch.arange(T * N, device=self.device))
        views, places, apart = c.views[:T].flat(), None, c.looks_apart
        if c.repeats is not None:  # views that repeat are looked at once in a minibatch, too
            views, places = views[c.repeats.first], cut(torch.from_numpy(c.repeats.numbers))
        with torch.no_grad(), self.hardware.autocast():
            inputs = self.agent.inputs(views)
        inputs = {name: cut(tensor) for name, tensor in inputs.items()} if places is None else inputs

        def look(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            state = {name: tensor.index_select(0, chosen) for name, tensor in c.first_state.items()}
            begins, where = started.index_select(1, chosen), steps.index_select(1, chosen).flatten()
            with self.hardware.autocast():
                if places is None:
                    rows = {name: tensor.index_select(1, chosen) for name, tensor in inputs.items()}
                    logits, values, _ = self.agent.forward(rows, state, begins)
                    return where, logits.flatten(0, 1), values.flatten(0, 1)
                which, back = places.index_select(1, chosen).unique(return_inverse=True)
                looks = apart.look({name: tensor.index_select(0, which) for name, tensor in inputs.items()})
                logits, values, _ = apart.go_on(looks, back, state, begins)
                return where, logits, values

        return T // R * N, look, self._split

    # ----------------------------------------------------------------------------------------- divergence and warnings

    @torch.no_grad()
    def _sound(self, look: _Look, order: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the last step left weights that are finite, and that say nothing too large to learn from.

        The losses were taken before that step, so they do not show what it did.
        """
        _, logits, values = look(order[: max(1, len(order) // self.config.num_steps)])
        said = torch.cat([logits, values], 1).square()  # the value loss squares what it is told
        return torch.stack([p.isfinite().all() for p in self.parameters]).all(), said.isfinite().all()

    def _diagnosis(self, what: str) -> str:
        """What is wrong, and how large the rewards and values were that it was computed from."""
        rewards, values = float(self.rewards.abs().max()), float(self.collector.values.abs().max())
        return (
            f"Training diverged at step {self.step:,}: the {what} (largest reward {rewards:.3g}, largest value "
            f"{values:.3g}). The same command would come to the same end: begin again with --fresh and a smaller "
            "--learning-rate or --reward-scale."
        )

    def warnings(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """What usually means that a run is lost, by a short name of the sign."""
        if "ppo/entropy" not in metrics:
            return {}  # the critic is first
        entropy, kl, value_loss = metrics["ppo/entropy"], metrics["ppo/approx_kl"], metrics["ppo/value_loss"]
        success, ignorant = metrics.get("rollout/success_rate", 1.0), self.ignorant_loss
        found: dict[str, str] = {}
        if entropy < 0.01 * math.log(len(self.agent.action_names)) and success < 0.5:
            found["entropy"] = (
                f"the policy's entropy has collapsed ({entropy:.4f}) while it succeeds in {percent(success)} of "
                "episodes; a larger --ent-coef keeps it exploring"
            )
        if kl > 0.5 and not metrics.get("imitate/weight"):
            found["kl"] = (
                f"an update moved the policy very far (KL {kl:.2f}); a smaller --learning-rate or --target-kl 0.03 "
                "would hold it"
            )
        if value_loss > max(1.0, 100 * ignorant):
            found["value"] = (
                f"the value loss has exploded ({value_loss:.3g}, and {ignorant:.3g} if all values were 0); a smaller "
                "--learning-rate or --reward-scale keeps values in reach"
            )
        elif value_loss > _DROWNING:
            found["scale"] = (
                f"rewards are so large that the value loss ({value_loss:.3g}) drowns the policy's, with which it "
                "shares every step; a smaller --reward-scale keeps values in reach"
            )
        return found

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> Saved:
        saved = super().state()
        return saved._replace(counters=saved.counters | {"ignorant_loss": self.ignorant_loss, "caution": self.caution})

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        self._ignorant_loss = float(saved.counters.get("ignorant_loss", 0.0))
        self._ignorant.fill_(self._ignorant_loss)
        self.caution = float(saved.counters.get("caution", 1.0))


_Look = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Part of a minibatch → (B,) its steps as t * N + n, their logits (B, A) and values (B, K)."""
_Parted = Callable[[Tensor], Sequence[Tensor]]
"""A minibatch → its parts, whose gradients are added up."""


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


def _broken(table: Tensor, grad_norm: Tensor) -> str:
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
        name: int((~column.isfinite()).nonzero()[0]) for name, column in named.items() if not column.isfinite().all()
    }
    first = min(broken, key=broken.__getitem__)
    return f"{first} of minibatch {broken[first] + 1} of {len(table)} is not finite"


def _rates(text: str, groups: Mapping[str, object]) -> dict[str, float]:
    """Learning rates of groups of parameters, written as `policy=1e-3,rnd=1e-4`."""
    rates: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, rate = part.partition("=")
        if name not in groups:
            known = ", ".join(groups)
            raise UsageError(
                f"--group-learning-rates: there is no group '{name}'.{did_you_mean(name, groups)} Known: {known}."
            )
        try:
            rates[name] = float(rate)
            if not 0 <= rates[name] < math.inf:
                raise ValueError
        except ValueError:
            raise UsageError(f"--group-learning-rates: '{part}' is not NAME=RATE, such as {name}=1e-4.") from None
    return rates
