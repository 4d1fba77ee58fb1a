"""Behavioural cloning: the cross-entropy of the actions of recorded episodes, under the agent that is trained.

An agent without memory learns from minibatches of single steps; views that repeat are looked at once. An agent with a
memory learns from whole episodes, computed from their beginning, so that its gradient reaches back to there.

A step of this learner is a sample: one recorded action. No env is stepped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bkrl.agents.networks.adam import Adam
from bkrl.agents.protocol import Inputs, TrainableAgent
from bkrl.agents.weights import load_weights
from bkrl.core.activity import doing
from bkrl.core.errors import InputError, UsageError
from bkrl.core.seeds import generator
from bkrl.data.dataset import Dataset
from bkrl.data.distinct import distinct_rows
from bkrl.data.views import ViewKeys, Views
from bkrl.envs import env_spec
from bkrl.learn.hardware import CPU, Hardware
from bkrl.learn.on_rollouts import Diverged, moments, restore_moments
from bkrl.learn.protocol import Learner, Saved

MINIBATCHES = 16
"""So many make an iteration."""
_EXAMINED = 2048  # held-out samples that an iteration looks at
_WORTH = 0.7  # views of a minibatch are told apart where so many are different, or fewer


@dataclass(frozen=True)
class Demonstrations:
    """Recorded steps to learn from, one row for each of S actions; an episode's rows stand together.

    Attributes:
        views: (S,) what was seen before each action.
        actions: (S,) int64, what is to be done there: what was done, or what a bot would have done.
        starts: (E + 1,) the first row of each episode, and S.
    """

    views: Views
    actions: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.actions)


def demonstrations(
    dataset: Dataset, agent: TrainableAgent, *, only_successes: bool, held_out: float, seed: int
) -> tuple[Demonstrations, Demonstrations]:
    """What to train on, and what is held out: whole episodes, drawn by `seed`.

    Raises:
        InputError: the dataset is of another kind of env, or holds too few episodes.
        UsageError: the agent reads something that datasets do not hold.
    """
    facts = env_spec(dataset.env_id)
    if facts.family != agent.family or dataset.action_names != agent.action_names:
        raise InputError(
            f"{dataset.path} was recorded in {dataset.env_id}, whose actions or observations are others than those of "
            f"{agent.env_id}; choose an env like it with --env."
        )
    if missing := sorted({*agent.wants} - {"symbols", "mission", "text", "history"}):
        raise UsageError(f"A dataset holds no {' and no '.join(missing)}, which this network reads; choose another.")
    chosen = np.flatnonzero(dataset.success) if only_successes else np.arange(dataset.num_episodes)
    if len(chosen) < 2:
        few = "successful episodes; leave --only-successes out, or" if only_successes else "episodes;"
        raise InputError(f"{dataset.path} has {len(chosen)} {few} collect more: cloning needs at least 2.")
    order = generator(seed, "bc", "held out").permutation(chosen)
    count = min(max(1, round(held_out * len(order))), len(order) - 1) if held_out > 0 else 0
    return _read(dataset, agent, np.sort(order[count:])), _read(dataset, agent, np.sort(order[:count]))


def _read(dataset: Dataset, agent: TrainableAgent, episodes: NDArray[np.int64]) -> Demonstrations:
    lengths = dataset.lengths[episodes]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ages = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    rows = np.repeat(dataset.first_row[episodes], lengths) + ages
    views, actions = Views(dataset.observations[rows]), dataset.actions[rows]
    worded = agent.wording.of(env_spec(dataset.env_id))
    if "mission" in agent.wants:
        numbers, said = dataset.text("mission")
        views = replace(views, mission=worded.missions(np.array(said, object))[numbers[rows]])
    if {"text", "history"} & {*agent.wants}:
        texts = worded.texts(views.symbols)
        views = replace(views, text=texts)
    if "history" in agent.wants:
        said = [worded.action_names[action] for action in actions.tolist()]
        turns = np.fromiter(zip(texts, said, strict=True), np.dtype(object), len(said))
        views = replace(views, history=_before(turns, ages, agent.observations))
    return Demonstrations(views, dataset.labels[rows], starts)


def _before(turns: NDArray[np.object_], ages: NDArray[np.int64], length: int) -> NDArray[np.object_]:
    """(S, length - 1) the turns before each of S, the oldest first; None where its episode had not begun.

    With length 3, the second turn of an episode gets (None, the first turn).
    """
    history = np.full((len(turns), length - 1), None, object)
    for back in range(1, length):
        rows = np.flatnonzero(ages >= back)
        history[rows, -back] = turns[rows - back]
    return history


class Cloning(Learner):
    """A `Learner` without envs.

    Args:
        agent: who is trained.
        data: what it learns from, and what it is examined on, which may be empty; None: `add` says it.
        batch_size: samples of a minibatch; of an agent with a memory, whole episodes of about so many.
        learning_rate: Adam's.
        max_grad_norm: gradients are clipped to this norm.
        total_steps: samples to learn from, each as often as it comes.
        seed: of the order of samples.
        hardware: where the agent computes.
        score_temperature: of an agent whose logits are log-probabilities of names, divided by it: minimise the
            cross-entropy of the tokens of names, whatever the others score. None: that of actions.
    """

    def __init__(
        self,
        agent: TrainableAgent,
        data: tuple[Demonstrations, Demonstrations] | None,
        *,
        batch_size: int,
        learning_rate: float,
        max_grad_norm: float,
        total_steps: int,
        seed: int,
        hardware: Hardware = CPU,
        score_temperature: float | None = None,
    ) -> None:
        self.score_temperature = score_temperature
        self.agent, self.hardware, self.total_steps, self.seed = agent, hardware, total_steps, seed
        self.max_grad_norm = max_grad_norm
        agent.prepare(hardware.device, hardware.compile)
        agent.schedule(0)
        self.parameters = [p for group in agent.groups().values() for p in group]
        self.optimizer = Adam([{"params": self.parameters, "lr": learning_rate}], eps=1e-5, fused=True)
        self.batch_size = batch_size
        self.step = self.place = 0  # `place`: how far the epoch is
        self.epoch = -1
        kind: type[_Episodes] | type[_Steps] = _Episodes if agent.begin(1) else _Steps
        self.data, self.held_out = (kind(agent, batch_size, hardware.device) for _ in range(2))
        if data is not None:
            self.add(*data)

    def add(self, data: Demonstrations, held_out: Demonstrations) -> None:
        """Learn from these samples too from now on; an epoch begins."""
        with doing(f"reading {len(data) + len(held_out):,} samples"), torch.no_grad(), self.hardware.autocast():
            self.data.add(data)
            if len(held_out):
                self.held_out.add(held_out)
        self.epoch, self.place = self.epoch + 1, 0
        self.order = self._order()

    def iterate(self, minibatches: int = MINIBATCHES) -> dict[str, float]:
        """So many minibatches, or fewer at the end; their mean figures, and those of some samples held out."""
        began = time.perf_counter()
        figures: list[Tensor] = []
        with doing("cloning", minibatches, "minibatches") as done:
            while len(figures) < minibatches and not self.done:
                self.optimizer.zero_grad()
                said = self._learn(self._next())
                norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
                self.optimizer.step()
                figures.append(torch.cat([said, norm[None]]))
                done(len(figures))
        self.agent.schedule(self.step)
        mean = torch.stack(figures).mean(0).tolist()
        if not all(map(np.isfinite, mean)) or not all(bool(p.isfinite().all()) for p in self.parameters):
            raise Diverged(
                f"Cloning diverged at sample {self.step:,}; begin with --fresh and a smaller --clone-learning-rate."
            )
        metrics = dict(zip(("bc/loss", "bc/accuracy", "bc/grad_norm"), mean, strict=True))
        if self.held_out.units:
            with torch.no_grad():
                loss, correct, _ = self._figures(self.held_out, self.held_out.some(_EXAMINED))
            metrics |= {"bc/held_out_loss": float(loss), "bc/held_out_accuracy": float(correct)}
        return metrics | {
            "bc/epoch": self.epoch + self.place / len(self.order),
            "time/update": time.perf_counter() - began,
        }

    def _learn(self, chosen: Tensor) -> Tensor:
        """The gradient of a minibatch, added up over the parts that the agent takes at once: (2,) loss, accuracy."""
        means = torch.zeros(2, device=self.hardware.device)
        for part in self.data.parted(chosen):
            loss, correct, count = self._figures(self.data, part)
            share = len(part) / len(chosen)
            (loss if share == 1 else loss * share).backward()
            means += share * torch.stack([loss.detach(), correct])
            self.step += count
        return means

    def _figures(self, data: _Steps | _Episodes, chosen: Tensor) -> tuple[Tensor, Tensor, int]:
        """Mean loss of the actions of a minibatch, the share that the agent finds likeliest, their number."""
        with self.hardware.autocast():
            logits, actions = data.look(chosen)
        if self.score_temperature is None:
            loss = nn.functional.cross_entropy(logits, actions)
        else:
            loss = -self.score_temperature * logits.gather(1, actions[:, None]).mean()
        return loss, (logits.argmax(1) == actions).float().mean(), len(actions)

    def _next(self) -> Tensor:
        """The next minibatch; what is left of an epoch makes a smaller one."""
        if self.place >= len(self.order):
            self.epoch, self.place = self.epoch + 1, 0
            self.order = self._order()
        end = self.data.end(self.order, self.place)
        chosen, self.place = self.order[self.place : end], end
        return chosen

    def _order(self) -> Tensor:
        """The order in which an epoch takes the samples, or the episodes."""
        order = generator(self.seed, "bc", "order", self.epoch).permutation(self.data.units)
        return torch.from_numpy(order).to(self.hardware.device)

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> Saved:
        tensors = {f"network.{name}": tensor for name, tensor in self.agent.module.state_dict().items()}
        tensors |= moments(self.optimizer, self.parameters)
        return Saved(tensors, {"step": self.step, "epoch": self.epoch, "place": self.place}, exact=True)

    def restore(self, saved: Saved) -> None:
        load_weights(self.agent.module, saved.tensors, "network.")
        restore_moments(self.optimizer, self.parameters, saved.tensors)
        self.step, self.epoch, self.place = (int(saved.counters[name]) for name in ("step", "epoch", "place"))
        if self.epoch >= 0:
            self.order = self._order()
        self.agent.schedule(self.step)

    def warnings(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Where the agent has learnt its samples by heart."""
        loss, unseen = metrics["bc/loss"], metrics.get("bc/held_out_loss", 0.0)
        if metrics["bc/epoch"] > 2 and unseen > max(2 * loss, 0.1 + loss):
            return {
                "overfit": f"the loss on episodes held out ({unseen:.2f}) is far above that in training ({loss:.2f}); "
                "more episodes, or fewer --steps, would help"
            }
        return {}

    def facts(self) -> dict[str, Any]:
        return {"samples": self.step, "epochs": self.epoch, **self.hardware.facts(self.parameters)}


class _Samples:
    """What one kind of agent learns from. What is added is read once: earlier samples are not read again."""

    def __init__(self, agent: TrainableAgent, batch_size: int, device: torch.device) -> None:
        self.agent, self.batch_size, self.units = agent, batch_size, 0
        self.inputs: Inputs = {}
        self.actions = self.places = self.lengths = torch.zeros(0, dtype=torch.int64, device=device)

    def _read(self, views: Views, places: NDArray[np.int64], actions: NDArray[np.int64]) -> None:
        """Read views (M,); `places` says where among them each unit begins."""
        new, before = self.agent.inputs(views), len(next(iter(self.inputs.values()), ()))
        self.inputs = {name: _behind(self.inputs[name], rows) if before else rows for name, rows in new.items()}
        self.places, self.actions = _more(self.places, places + before), _more(self.actions, actions)
        self.units = len(self.places)

    def parted(self, chosen: Tensor) -> list[Tensor]:
        """A minibatch in the parts that are learnt from together."""
        return [chosen]


def _more(old: Tensor, new: NDArray[np.int64]) -> Tensor:
    return torch.cat([old, torch.from_numpy(new).to(old.device)])


def _behind(rows: Tensor, new: Tensor) -> Tensor:
    """Both, one behind the other; prompts of unlike lengths are filled up."""
    if rows.shape[1:] != new.shape[1:]:
        rows, new = pad_sequence([*rows, *new], batch_first=True).split([len(rows), len(new)])
    return torch.cat([rows, new])


class _Steps(_Samples):
    """Samples for an agent without memory. Each distinct view is kept once, and, where that saves, looked at once."""

    def add(self, data: Demonstrations) -> None:
        """Read more."""
        first, places = distinct_rows(ViewKeys(self.agent.wants)(data.views))
        self._read(data.views[first], places, data.actions)
        some = self.places[:: max(1, self.units // self.batch_size)][: self.batch_size]
        self.repeats = len(some.unique()) <= _WORTH * len(some)

    def end(self, order: Tensor, place: int) -> int:
        """Where the minibatch that begins at a place of an order ends."""
        return min(place + self.batch_size, len(order))

    def some(self, count: int) -> Tensor:
        """At most `count` samples, evenly spaced."""
        return torch.arange(0, self.units, -(-self.units // count), device=self.actions.device)

    def parted(self, chosen: Tensor) -> list[Tensor]:
        """A minibatch in the parts that are learnt from together."""
        return [chosen[near] for near in self.agent.together(self.inputs, self.places.index_select(0, chosen))]

    def look(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, A) and actions (B,) of samples."""
        which, back = self.places.index_select(0, chosen), None
        if self.repeats:
            which, back = which.unique(return_inverse=True)
        rows = {name: tensor.index_select(0, which) for name, tensor in self.inputs.items()}
        logits, _, _ = self.agent.forward(rows, {}, None)
        return logits if back is None else logits.index_select(0, back), self.actions.index_select(0, chosen)


class _Episodes(_Samples):
    """Whole episodes for an agent with a memory, side by side and filled up with repeats of their last step."""

    def add(self, data: Demonstrations) -> None:
        """Read more."""
        self._read(data.views, data.starts[:-1], data.actions)
        self.lengths = _more(self.lengths, np.diff(data.starts))

    def end(self, order: Tensor, place: int) -> int:
        """Where the minibatch that begins at a place of an order ends: with the episode that fills it."""
        total = self.lengths[order[place:]].cumsum(0)
        return min(place + int((total < self.batch_size).sum()) + 1, len(order))

    def some(self, count: int) -> Tensor:
        """The first episodes, of about `count` steps."""
        everything = torch.arange(self.units, device=self.actions.device)
        return everything[: int((self.lengths.cumsum(0) < count).sum()) + 1]

    def look(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (S, A) and actions (S,) of all steps of episodes."""
        starts, lengths = self.places[chosen], self.lengths[chosen]
        ages = torch.arange(int(lengths.max()), device=starts.device)[:, None]  # (T, 1)
        rows = starts + torch.minimum(ages, lengths - 1)  # (T, B)
        sequence = {
            name: tensor.index_select(0, rows.flatten()).unflatten(0, rows.shape)
            for name, tensor in self.inputs.items()
        }
        started = (ages == 0).expand(rows.shape)
        logits, _, _ = self.agent.forward(sequence, self.agent.begin(len(chosen)), started)
        real = ages < lengths
        return logits[real], self.actions[rows[real]]
