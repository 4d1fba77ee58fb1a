"""Training preference networks: Bradley–Terry with ties and soft labels, by episode, calibrated.

P(A better) = σ(score A - score B), after Bradley and Terry (1952); a label is the share of votes for A, so a tie is 0.5
and pulls the two scores together.  Episodes, not pairs, are split into training, validation and test, so that no
segment of a test episode was ever trained on.  After training one temperature is fitted on the validation pairs (Guo et
al. 2017, arXiv 1706.04599): dividing by it changes no order and makes the probabilities mean what they say.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bkrl.agents.networks.adam import Adam
from bkrl.agents.networks.layers import one_thread
from bkrl.core.errors import InputError
from bkrl.core.seeds import derive_seed, generator
from bkrl.data.partition import TEST, TRAIN, VALIDATION, partition
from bkrl.data.windows import Windows
from bkrl.potentials.preference import PreferenceRaw
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.stats.intervals import wilson_interval
from bkrl.text.mission_words import MissionWords

_PATIENCE, _BATCH = 4, 32  # passes without a better validation loss that end training, and pairs in a step
_LEARNING_RATE, _WEIGHT_DECAY = 2e-3, 0.02  # of AdamW
_SHORTEN = 0.05  # share of training windows whose oldest steps are masked, so that short histories are not foreign
_BINS = 10  # of the calibration error, equally wide


@dataclass(frozen=True)
class Pairs:
    """P labelled pairs: their windows (each ends at its segment's end), labels and episodes.

    Attributes:
        a, b: P windows each, whose horizon is the segments' length.
        labels: (P,) float64, probability that A is better.
        episodes: (P, 2) int64.
    """

    a: Windows
    b: Windows
    labels: NDArray[np.float64]
    episodes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Fit:
    """What training found, as plain values.

    Attributes:
        pairs_train, pairs_validation, pairs_test: pairs in each part; ties: labels of 0.5 among all.
        accuracy, accuracy_low, accuracy_high: of decided test pairs, with its 95 % interval.
        accuracy_validation, accuracy_train: the same on the other parts.
        calibration_error: expected calibration error on the test pairs; calibration_error_before: without temperature.
        temperature: what scores are divided by.
        loss_test: mean Bradley–Terry loss of the test pairs, in nats.
        epochs: passes over the training pairs, of the longest-trained network.
        ensemble: networks; accuracy_members: test accuracy of each alone.
        spread: mean standard deviation over the networks of a test window's score (None for one network).
        disagreement: share of decided test pairs that the networks do not all order alike (None for one network).
    """

    pairs_train: int
    pairs_validation: int
    pairs_test: int
    ties: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    accuracy_validation: float
    accuracy_train: float
    calibration_error: float
    calibration_error_before: float
    temperature: float
    loss_test: float
    epochs: int
    ensemble: int
    accuracy_members: list[float]
    spread: float | None
    disagreement: float | None


def split_pairs(pairs: Pairs, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training, validation and test pairs.

    Pairs lie within one part of the episodes (`bkrl.data.partition`); tables from elsewhere may hold others.  A pair
    counts for training only if both its episodes are training episodes.  The others are held out: a test pair holds no
    segment of a training episode.  Where most validation pairs mix a validation episode with a training one, those
    are what is stopped early on, and pairs of two held-out episodes are for testing.
    """
    parts = partition(pairs.episodes, seed)
    train = np.flatnonzero((parts == TRAIN).all(axis=1))
    test = np.flatnonzero((parts != TRAIN).all(axis=1))
    validation = np.setdiff1d(np.flatnonzero((parts == VALIDATION).any(axis=1)), test)
    within = [np.flatnonzero((parts == part).all(axis=1)) for part in (VALIDATION, TEST)]
    if len(validation) <= len(within[0]):
        validation, test = within
    return train, validation, test


def enough(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The same; InputError when there are too few pairs to train, stop and test on."""
    train, validation, test = split_pairs(pairs)
    if len(train) < 10 or len(validation) < 2 or len(test) < 2:
        raise InputError(
            f"{len(pairs)} labelled pairs leave {len(train)} to train on, {len(validation)} to stop early and "
            f"{len(test)} to test on after the split by episode; label more pairs, or collect more episodes."
        )
    return train, validation, test


@one_thread()
def fit(
    pairs: Pairs,
    config: NetConfig,
    *,
    seed: int,
    ensemble: int = 1,
    epochs: int = 30,
    on_epoch: Callable[[int, float], None] | None = None,
    words: MissionWords | None = None,
    memory: tuple[str, ...] = (),
) -> tuple[PreferenceRaw, Fit]:
    """Train on labelled pairs.

    Args:
        pairs: with at least one training and one validation pair.
        config: of the network; its horizon is the segments' length.
        seed: of initialisation, order and shortening; each network of an ensemble has streams of its own.
        ensemble: networks to train and average.
        epochs: most passes over the training pairs.
        on_epoch: called with the number of passes done (of all networks) and the validation accuracy.
        words: of missions, for networks that read them; None: they do not.
        memory: the names of the fields of the memory, for networks that read it.

    Raises:
        InputError: too few pairs to train, stop and test on.
    """
    train, validation, _ = parts = enough(pairs)
    trainer = _Trainer(pairs, words)
    nets, members, longest = [], [], 0
    for member in range(ensemble):
        own = derive_seed(seed, "preference", "member", member) if member else seed

        def passed(done: int, accuracy: float, before: int = member * epochs) -> None:
            if on_epoch is not None:
                on_epoch(before + done, accuracy)

        net, done = trainer.train(config, own, epochs, train, validation, passed)
        nets.append(net)
        members.append([trainer.margins(net, part) for part in parts])
        longest = max(longest, done)
    margins = [np.mean([member[part] for member in members], axis=0) for part in range(3)]
    temperature = fit_temperature(margins[1], pairs.labels[validation])
    raw = PreferenceRaw(*nets, temperature=temperature, memory=memory)
    return raw, _measure(raw, pairs, parts, [m / temperature for m in margins], [m[2] for m in members], longest)


class _Trainer:
    """Everything the networks of one ensemble share: the pairs as tensors, and how they are trained."""

    def __init__(self, pairs: Pairs, words: MissionWords | None) -> None:
        both = Windows.joined([pairs.a, pairs.b]).numbered()
        self.views, self.index = torch.from_numpy(both.symbols), both.index
        self.actions = torch.from_numpy(np.concatenate([pairs.a.actions, pairs.b.actions]))
        self.valid = torch.from_numpy(np.concatenate([pairs.a.valid, pairs.b.valid]))
        self.labels = torch.from_numpy(pairs.labels).float()
        self.words, self.tokens = () if words is None else words.words, None
        if words is not None and pairs.a.missions is not None and pairs.b.missions is not None:
            self.tokens = torch.from_numpy(words.tokens([*pairs.a.missions, *pairs.b.missions]))
        self.memory = None
        if pairs.a.memory is not None and pairs.b.memory is not None:
            self.memory = torch.from_numpy(np.concatenate([pairs.a.memory, pairs.b.memory]))

    def train(
        self,
        config: NetConfig,
        seed: int,
        epochs: int,
        train: NDArray[np.int64],
        validation: NDArray[np.int64],
        passed: Callable[[int, float], None],
    ) -> tuple[PreferenceNet, int]:
        """One network with its best weights on the validation pairs, and the passes it took."""
        rng = generator(seed, "preference")
        torch.manual_seed(derive_seed(seed, "preference", "init"))
        net = PreferenceNet(config, self.words)
        optimizer = Adam(net.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, decoupled_weight_decay=True)
        steps = epochs * math.ceil(len(train) / _BATCH)
        warm_up = max(1, steps // 10)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm_up, max(0.02, (steps - step) / (steps - warm_up + 1)))
        )
        labels = self.labels[validation].double().numpy()
        best, best_loss, since, done = _weights(net), math.inf, 0, 0
        for done in range(1, epochs + 1):
            net.train()
            order = rng.permutation(train)
            for start in range(0, len(order), _BATCH):
                chosen = order[start : start + _BATCH]
                mask = _shortened(self.valid[self._both(chosen)], rng)
                loss = bradley_terry(self._margin(net, chosen, mask), self.labels[chosen])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            margin = self.margins(net, validation)
            loss_now = _loss(margin, labels)
            passed(done, _accuracy(margin, labels)[0])
            since += 1
            if loss_now < best_loss:
                best, best_loss, since = _weights(net), loss_now, 0
            elif since >= _PATIENCE:
                break
        net.load_state_dict(best)
        return net.eval(), done

    @torch.no_grad()
    def margins(self, net: PreferenceNet, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) score A - score B of pairs, without gradients."""
        net.eval()
        parts = [chosen[i : i + 512] for i in range(0, len(chosen), 512)]
        found = [self._margin(net, part, self.valid[self._both(part)]).numpy() for part in parts]
        return np.concatenate(found).astype(np.float64)

    def _margin(self, net: PreferenceNet, chosen: NDArray[np.int64], mask: torch.Tensor) -> torch.Tensor:
        both = self._both(chosen)
        used, place = np.unique(self.index[both], return_inverse=True)
        views, numbers = self.views[torch.from_numpy(used)], torch.from_numpy(place.reshape(len(both), -1))
        tokens, memory = (None if one is None else one[both] for one in (self.tokens, self.memory))
        score = net(views, numbers, self.actions[both], mask, tokens, memory)
        return score[: len(chosen)] - score[len(chosen) :]

    def _both(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of A's and then of B's windows."""
        return np.concatenate([chosen, chosen + len(self.labels)])


def bradley_terry(margin: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean of -[y log σ(m) + (1 - y) log σ(-m)] over pairs: m = score A - score B, y the probability of A.

    Its minimum for one pair lies at m = log(y / (1 - y)): 0 for a tie, and finite for every label that is not certain.
    """
    return nn.functional.binary_cross_entropy_with_logits(margin, labels)


def fit_temperature(margin: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """The T in [1/20, 20] with the least Bradley–Terry loss of margin / T, by golden-section search over log T."""
    low, high = -math.log(20.0), math.log(20.0)
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(40):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if _loss(margin / math.exp(a), labels) <= _loss(margin / math.exp(b), labels):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2.0)


def _weights(net: PreferenceNet) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def _shortened(valid: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Mask a random number of the oldest rows in a share of the windows."""
    rows, length = valid.shape
    cut = np.where(rng.random(rows) < _SHORTEN, rng.integers(0, length, rows), 0)
    return valid & (torch.arange(length)[None] >= torch.from_numpy(cut)[:, None])


def _measure(
    raw: PreferenceRaw,
    pairs: Pairs,
    parts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    margins: list[NDArray[np.float64]],
    members: list[NDArray[np.float64]],
    epochs: int,
) -> Fit:
    """`margins`: calibrated, of each part; `members`: of each network on the test pairs, before calibration."""
    labels = [pairs.labels[part] for part in parts]
    accuracy, decided = _accuracy(margins[2], labels[2])
    low, high = wilson_interval(accuracy * decided, decided)
    spread = disagreement = None
    if len(members) > 1:
        signs = np.stack(members)[:, labels[2] != 0.5] > 0
        disagreement = float((signs != signs[0]).any(axis=0).mean()) if signs.size else None
        scores = [raw.members(side[parts[2]].numbered()) for side in (pairs.a, pairs.b)]
        spread = float(np.concatenate(scores, axis=1).std(axis=0).mean())
    return Fit(
        pairs_train=len(parts[0]),
        pairs_validation=len(parts[1]),
        pairs_test=len(parts[2]),
        ties=int((pairs.labels == 0.5).sum()),
        accuracy=accuracy,
        accuracy_low=low,
        accuracy_high=high,
        accuracy_validation=_accuracy(margins[1], labels[1])[0],
        accuracy_train=_accuracy(margins[0], labels[0])[0],
        calibration_error=calibration_error(margins[2], labels[2]),
        calibration_error_before=calibration_error(margins[2] * raw.temperature, labels[2]),
        temperature=raw.temperature,
        loss_test=_loss(margins[2], labels[2]),
        epochs=epochs,
        ensemble=len(members),
        accuracy_members=[_accuracy(margin, labels[2])[0] for margin in members],
        spread=spread,
        disagreement=disagreement,
    )


def _loss(margin: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    return float(np.mean(np.logaddexp(0.0, margin) - labels * margin))


def _accuracy(margin: NDArray[np.float64], labels: NDArray[np.float64]) -> tuple[float, int]:
    """Share of decided pairs put in the right order, equal scores as half, and their number; ties have none."""
    decided = labels != 0.5
    if not decided.any():
        return math.nan, 0
    right = 0.5 + 0.5 * np.sign(margin) * np.sign(labels - 0.5)
    return float(right[decided].mean()), int(decided.sum())


def calibration_error(margin: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """Expected calibration error of P(A better), over equally wide bins."""
    probability = 1.0 / (1.0 + np.exp(-np.clip(margin, -50, 50)))
    which = np.minimum((probability * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for one in range(_BINS):
        inside = which == one
        if inside.any():
            error += inside.mean() * abs(probability[inside].mean() - labels[inside].mean())
    return float(error)
