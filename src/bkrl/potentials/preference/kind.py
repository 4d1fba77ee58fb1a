"""Preference potentials from a label run: which pairs count, and the networks that are trained on them."""

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bkrl.core.errors import InputError
from bkrl.core.reporter import Reporter, percent, percents
from bkrl.data.dataset import Dataset, Segment
from bkrl.envs import family_of
from bkrl.envs.family import EnvSpec
from bkrl.envs.symbols import Symbols
from bkrl.labelers.quality import agreement_of
from bkrl.labelers.tables import labels_of, memory_names, mission_words
from bkrl.potentials.kinds import Fitted, LabelledKind, Maker, Shuffle, permuted
from bkrl.potentials.preference import load
from bkrl.potentials.preference.fit import Fit, Pairs, enough, fit
from bkrl.potentials.preference.net import NetConfig
from bkrl.runs.record import Run
from bkrl.text.mission_words import FIRST, MissionWords

_HORIZON = 5
"""What a control sees where no pair says how long segments are."""


def read(
    labels: Run, dataset: Dataset, *, shuffle: Shuffle | None, ensemble: int, epochs: int, min_agreement: float
) -> Maker:
    """The labelled pairs of a run, without those of whose answers less than `min_agreement` agree, to train on.

    Facts of the potential: min_agreement, pairs_left_out where answers that disagree were left out; labels_kept of a
    shuffled control, the share of pairs whose label still prefers the same one (a tie is half).
    """
    rows = [(row, agreement) for row in labels_of(labels) if (agreement := agreement_of(row)) is not None]
    if not rows:
        raise InputError(f"{labels.path} has no usable label; look at its responses.parquet, and label again.")
    kept = [row for row, agreement in rows if agreement >= min_agreement]
    if not kept:
        raise InputError(f"No pair of {labels.path} has answers that agree that far; lower --min-agreement.")
    length = _segment_length(labels, (row["length"] for row in kept))
    a, b = (
        dataset.windows(
            np.array(
                [dataset.rows(Segment(row[f"{side}_episode_id"], row[f"{side}_start"], length))[-1] for row in kept],
                np.int64,
            ),
            length,
        )
        for side in ("a", "b")
    )
    values = np.array([row["label"] for row in kept], np.float64)
    facts: dict[str, Any] = {}
    if shuffle is not None:
        said, values = values, values[permuted(len(values), shuffle)]
        facts["labels_kept"] = float(1 - np.abs(np.sign(said - 0.5) - np.sign(values - 0.5)).mean() / 2)
    episodes = np.array([(row["a_episode_id"], row["b_episode_id"]) for row in kept], np.int64)
    pairs = Pairs(a, b, values, episodes)
    enough(pairs)
    if min_agreement > 0:
        facts |= {"min_agreement": min_agreement, "pairs_left_out": len(rows) - len(kept)}
    words, memory = mission_words(labels, dataset), memory_names(labels, dataset)
    net = net_config(dataset, length, words, len(memory))

    def make(seed: int, reporter: Reporter) -> Fitted:
        if (left_out := facts.get("pairs_left_out")) is not None:
            reporter.say(
                f"{left_out:,} of {left_out + len(pairs):,} labelled pairs are left out: the share of their "
                f"commonest answer is below {min_agreement:g}."
            )
        with reporter.progress("train preference network", epochs * ensemble, "epochs") as update:
            raw, found = fit(
                pairs,
                net,
                seed=seed,
                ensemble=ensemble,
                epochs=epochs,
                on_epoch=lambda done, accuracy: update(done, f"validation accuracy {percent(accuracy, 1)}"),
                words=words,
                memory=memory,
            )
        for sentence in _sentences(found, epochs):
            reporter.say(sentence)
        return Fitted("preference", raw, dataset, {**asdict(found), **facts})

    return make


def horizon(labels: Run) -> int:
    """The actions in a segment of the labels."""
    return _segment_length(labels, [row["length"] for row in labels_of(labels)] or [_HORIZON])


def _segment_length(labels: Run, lengths: Iterable[int]) -> int:
    """The actions in a segment, which all pairs must share; InputError where they do not."""
    found = sorted(set(lengths))
    if len(found) != 1:
        raise InputError(f"{labels.path} compares segments of several lengths ({found}); label again with one.")
    return int(found[0])


def net_config(
    dataset: Dataset | EnvSpec, horizon: int, words: MissionWords | None = None, memory: int = 0
) -> NetConfig:
    """Sizes of a network for windows of this dataset or env; one that reads missions has more to tell apart.

    `memory`: fields of the memory of episodes that it reads.
    """
    family = family_of(dataset.env_id)
    symbols = family.symbols(dataset.obs_shape)
    pointer = symbols.pointer
    faced = (pointer[0], *pointer[1]) if pointer else ()
    plain = NetConfig(
        dataset.obs_shape, len(dataset.action_names), horizon, grid=family.grid, faced=faced, memory=memory
    )
    if words is None:
        return plain
    things = symbols == Symbols.of_minigrid(math.prod(dataset.obs_shape[:-1]))
    return replace(plain, width=64, hidden=128, vocabulary=FIRST + len(words.words), things=things)


def _sentences(found: Fit, most: int) -> list[str]:
    epochs = f"for {found.epochs} epoch{'s' * (found.epochs != 1)}"
    if found.epochs < most:
        epochs = f"until their validation loss no longer fell ({found.epochs} of at most {most} epochs)"
    said = [
        f"Test accuracy {percent(found.accuracy, 1)} (95 % interval "
        f"{percents(found.accuracy_low, found.accuracy_high, 1)}, {found.pairs_test:,} pairs of unseen episodes), "
        f"calibration error {found.calibration_error:.3f} ({found.calibration_error_before:.3f} without its "
        f"temperature of {found.temperature:.2f}); trained on {found.pairs_train:,} pairs {epochs}."
    ]
    if found.disagreement is not None and found.spread is not None:
        said.append(
            f"The {found.ensemble} networks order {percent(found.disagreement, 1)} of the test pairs differently; "
            f"their scores of a window spread by {found.spread:.2f}."
        )
    return said


_SETTINGS = ("ensemble", "epochs", "min_agreement")
KINDS = (LabelledKind("preference", load, read, _SETTINGS, variant="pref", horizon=horizon),)
