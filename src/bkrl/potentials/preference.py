"""Preference potentials: a network trained on which of two segments is better, read as Φ of a history.

Bradley–Terry with soft labels: P(A better) = σ(score A - score B); a tie is the label 0.5.  Episodes, not pairs, are
split into training, validation and test, so that no segment of a test episode was ever trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from bkrl.errors import InputError
from bkrl.partition import TEST, TRAIN, VALIDATION, partition
from bkrl.potentials.distinct import NumberedWindows, number
from bkrl.potentials.preference_net import NetConfig, PreferenceNet
from bkrl.potentials.protocol import Artefact
from bkrl.report.statistics import wilson_interval
from bkrl.rng import derive_seed, generator
from bkrl.run import atomic_write
from bkrl.windows import Windows

WEIGHTS = "model.safetensors"
_CHUNK = 256  # rows in every forward pass: always the same, so a score cannot depend on the batch it came in


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
    """What training found: counts of pairs, test accuracy with its 95 % interval, calibration error, epochs run."""

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
    loss_test: float
    epochs: int


class PreferenceRaw:
    """The trained score of windows, evaluated in fixed-size padded chunks without gradients."""

    def __init__(self, net: PreferenceNet) -> None:
        self.net = net.eval().requires_grad_(False)
        self.horizon = net.config.horizon

    @torch.no_grad()
    def __call__(self, windows: NumberedWindows) -> NDArray[np.float64]:
        index = windows.index
        embedded = _in_chunks(self.net.embed, torch.from_numpy(np.ascontiguousarray(windows.views)))
        present = _in_chunks(self.net.present, embedded)
        place = index[:, -1:]
        tokens = present
        if self.horizon:
            steps = np.stack([index[:, :-1], windows.actions, index[:, 1:]], axis=-1).reshape(-1, 3)
            # a transition is one number: views and actions are few
            code = (steps[:, 0] * self.net.config.num_actions + steps[:, 1]) * len(windows.views) + steps[:, 2]
            _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
            before, action, after = (torch.from_numpy(np.ascontiguousarray(column)) for column in steps[first].T)
            past = _in_chunks(lambda b, a, c: self.net.transitions(embedded, b, a, c), before, action, after)
            tokens = torch.cat([past, present])
            place = np.concatenate([inverse.reshape(len(index), -1), place + len(past)], axis=1)
        size = place.shape[1], tokens.shape[1]
        scores = _in_chunks(
            lambda rows, mask: self.net.score(tokens.index_select(0, rows.flatten()).view(-1, *size), mask),
            torch.from_numpy(place),
            torch.from_numpy(windows.valid),
        )
        return scores.numpy().astype(np.float64)


def _in_chunks(function: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
    """`function` over rows in chunks of exactly _CHUNK, the last one filled up with copies of its first row."""
    count = len(arrays[0])
    results = []
    for start in range(0, count, _CHUNK):
        parts = [array[start : start + _CHUNK] for array in arrays]
        missing = _CHUNK - len(parts[0])
        if missing:
            parts = [torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in parts]
        result = function(*parts)
        results.append(result[: _CHUNK - missing] if missing else result)
    return torch.cat(results)


def split_pairs(pairs: Pairs, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training, validation and test pairs.

    Pairs lie within one part of the episodes (`bkrl.partition`); tables from elsewhere may hold others.  A pair counts
    for training only if both its episodes are training episodes.  The others are held out: a test pair holds no segment
    of a training episode, a validation pair at least one that training has not seen.
    """
    parts = partition(pairs.episodes, seed)
    train = np.flatnonzero((parts == TRAIN).all(axis=1))
    test = np.flatnonzero((parts != TRAIN).all(axis=1))
    validation = np.setdiff1d(np.flatnonzero((parts == VALIDATION).any(axis=1)), test)
    if len(validation) == 0:  # every pair within one partition: nothing mixed is left to stop early on
        validation, test = test[parts[test, 0] == VALIDATION], test[parts[test, 0] == TEST]
    return train, validation, test


def fit(
    pairs: Pairs,
    config: NetConfig,
    *,
    seed: int,
    epochs: int = 30,
    patience: int = 4,
    batch: int = 32,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.02,
    shorten: float = 0.05,
    on_epoch: Callable[[int, float], None] | None = None,
) -> tuple[PreferenceRaw, Fit]:
    """Train on labelled pairs.

    Args:
        pairs: with at least one training and one validation pair.
        config: of the network; its horizon is the segments' length.
        seed: of initialisation, order and shortening.
        epochs: most passes over the training pairs; `patience` passes without a better validation loss end training.
        shorten: share of training windows whose oldest steps are masked, so that short histories are not foreign.
        on_epoch: called with the number of passes done and the validation accuracy.

    Raises:
        InputError: too few pairs to train, stop and test on.
    """
    train, validation, test = split_pairs(pairs)
    if len(train) < 10 or len(validation) < 2 or len(test) < 2:
        raise InputError(
            f"{len(pairs)} labelled pairs leave {len(train)} to train on, {len(validation)} to stop early and "
            f"{len(test)} to test on after the split by episode; label more pairs, or collect more episodes."
        )
    rng = generator(seed, "preference")
    torch.manual_seed(derive_seed(seed, "preference", "init"))
    net = PreferenceNet(config)
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate, weight_decay=weight_decay)
    views, index = _views_of(pairs)
    actions = torch.from_numpy(np.concatenate([pairs.a.actions, pairs.b.actions]))
    valid = torch.from_numpy(np.concatenate([pairs.a.valid, pairs.b.valid]))
    labels = torch.from_numpy(pairs.labels).float()
    count = len(pairs)
    steps = epochs * math.ceil(len(train) / batch)
    warm_up = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, max(0.02, (steps - step) / (steps - warm_up + 1)))
    )

    def scores(chosen: NDArray[np.int64], mask: torch.Tensor) -> torch.Tensor:
        both = np.concatenate([chosen, chosen + count])
        used, place = np.unique(index[both], return_inverse=True)
        score = net(views[torch.from_numpy(used)], torch.from_numpy(place.reshape(len(both), -1)), actions[both], mask)
        return score[: len(chosen)] - score[len(chosen) :]

    @torch.no_grad()
    def margins(chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        net.eval()
        parts = [
            scores(
                chosen[i : i + 512], valid[np.concatenate([chosen[i : i + 512], chosen[i : i + 512] + count])]
            ).numpy()
            for i in range(0, len(chosen), 512)
        ]
        return np.concatenate(parts).astype(np.float64)

    best, best_loss, since, done = {k: v.clone() for k, v in net.state_dict().items()}, math.inf, 0, 0
    for epoch in range(epochs):
        net.train()
        order = rng.permutation(train)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            mask = _shortened(valid[np.concatenate([chosen, chosen + count])], shorten, rng)
            loss = nn.functional.binary_cross_entropy_with_logits(scores(chosen, mask), labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        done = epoch + 1
        margin = margins(validation)
        loss_now = _loss(margin, pairs.labels[validation])
        if on_epoch is not None:
            on_epoch(done, _accuracy(margin, pairs.labels[validation])[0])
        since += 1
        if loss_now < best_loss:
            best, best_loss, since = {k: v.clone() for k, v in net.state_dict().items()}, loss_now, 0
        elif since >= patience:
            break
    net.load_state_dict(best)
    return PreferenceRaw(net), _measure(margins, pairs.labels, train, validation, test, done)


def _views_of(pairs: Pairs) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Distinct views (M, *obs_shape) and their numbers in A's and then B's windows, (2P, H+1)."""
    both = Windows(
        *(np.concatenate([getattr(pairs.a, n), getattr(pairs.b, n)]) for n in ("observations", "actions", "valid"))
    )
    numbered = number(both)
    return torch.from_numpy(numbered.views), numbered.index


def _shortened(valid: torch.Tensor, share: float, rng: np.random.Generator) -> torch.Tensor:
    """Mask a random number of the oldest rows in a share of the windows."""
    rows, length = valid.shape
    cut = np.where(rng.random(rows) < share, rng.integers(0, length, rows), 0)
    return valid & (torch.arange(length)[None] >= torch.from_numpy(cut)[:, None])


def _measure(
    margins: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    labels: NDArray[np.float64],
    train: NDArray[np.int64],
    validation: NDArray[np.int64],
    test: NDArray[np.int64],
    epochs: int,
) -> Fit:
    margin = margins(test)
    accuracy, decided = _accuracy(margin, labels[test])
    low, high = wilson_interval(accuracy * decided, decided)
    return Fit(
        pairs_train=len(train),
        pairs_validation=len(validation),
        pairs_test=len(test),
        ties=int((labels == 0.5).sum()),
        accuracy=accuracy,
        accuracy_low=low,
        accuracy_high=high,
        accuracy_validation=_accuracy(margins(validation), labels[validation])[0],
        accuracy_train=_accuracy(margins(train), labels[train])[0],
        calibration_error=calibration_error(margin, labels[test]),
        loss_test=_loss(margin, labels[test]),
        epochs=epochs,
    )


def _loss(margin: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    return float(np.mean(np.logaddexp(0.0, margin) - labels * margin))


def _accuracy(margin: NDArray[np.float64], labels: NDArray[np.float64]) -> tuple[float, int]:
    """Share of decided pairs put in the right order, and their number; ties have no right order."""
    decided = labels != 0.5
    if not decided.any():
        return math.nan, 0
    return float(((margin > 0) == (labels > 0.5))[decided].mean()), int(decided.sum())


def calibration_error(margin: NDArray[np.float64], labels: NDArray[np.float64], bins: int = 10) -> float:
    """Expected calibration error of P(A better), over equally wide bins."""
    probability = 1.0 / (1.0 + np.exp(-np.clip(margin, -50, 50)))
    which = np.minimum((probability * bins).astype(int), bins - 1)
    error = 0.0
    for one in range(bins):
        inside = which == one
        if inside.any():
            error += inside.mean() * abs(probability[inside].mean() - labels[inside].mean())
    return float(error)


def save_net(raw: PreferenceRaw, folder: Path) -> dict[str, Any]:
    """Write the weights; the settings the artefact must hold to build the network again."""
    atomic_write(folder / WEIGHTS, save({k: v.contiguous() for k, v in raw.net.state_dict().items()}))
    return {"net": raw.net.config.to_json()}


def load(artefact: Artefact) -> PreferenceRaw:
    """The network of a "preference" artefact; InputError when its weights do not fit."""
    path = artefact.part(WEIGHTS)
    try:
        net = PreferenceNet(NetConfig.from_json(artefact.settings["net"]))
        net.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold the weights of this network ({str(error)[:120]}).") from None
    return PreferenceRaw(net)
