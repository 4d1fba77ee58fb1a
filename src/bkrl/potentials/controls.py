"""Control potentials: what a claim about a potential has to beat.

`zero` is plain PPO on the shaping path; `random` is a fixed network with its first weights, on the same kind of scale;
`shuffled` is the same labels, permuted, sent through the same builder (see `kinds.permuted`); `constant` is advice that
is the same in every state, with Φ = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.dataset import Dataset
from bkrl.data.distinct import NumberedWindows
from bkrl.labelers.tables import mission_words
from bkrl.potentials.kinds import Fitted, Kind, LabelledKind, Material
from bkrl.potentials.preference import PreferenceRaw
from bkrl.potentials.preference import load as load_network
from bkrl.potentials.preference.kind import net_config
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.potentials.protocol import Raw
from bkrl.runs.record import Run
from bkrl.text.mission_words import MissionWords

UNLABELLED = ("zero", "random")
"""The controls that read no label."""


class Zero(Raw):
    """Φ = 0 everywhere: shaping adds nothing, so whatever it costs or changes is the machinery's."""

    bounds = (-1.0, 0.0)

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def __call__(self, windows: NumberedWindows) -> NDArray[np.float64]:
        return np.zeros(len(windows))


def random_network(config: NetConfig, seed: int, words: MissionWords | None = None) -> PreferenceRaw:
    """A preference network with its initial weights: sees what a trained one sees and knows nothing."""
    torch.manual_seed(derive_seed(seed, "control", "random"))
    return PreferenceRaw(PreferenceNet(config, () if words is None else words.words))


@dataclass(frozen=True)
class Fixed:
    """A control that nothing has to be fitted for."""

    kind: str
    raw: Raw

    def fit(self, seed: int, reporter: Reporter) -> Fitted:
        """The control as it is."""
        del seed, reporter
        return Fitted(self.kind, self.raw, {})


def read(control: str, labels: Run, dataset: Dataset, stands_for: LabelledKind, seed: int) -> Material:
    """A control that reads no label.

    Args:
        control: one of UNLABELLED.
        labels: what it stands for is made from them.
        dataset: of the labels.
        stands_for: the kind of potential that is made from such labels; a control sees as far back as that.
        seed: of a random network.
    """
    horizon, words = stands_for.horizon(labels), mission_words(labels, dataset)
    raw = Zero(horizon) if control == "zero" else random_network(net_config(dataset, horizon, words), seed, words)
    return Fixed(control, raw)


def silenced(fitted: Fitted) -> Fitted:
    """Φ = 0 in the place of a potential, with what is known of that."""
    fitted.raw.close()
    return Fitted("zero", Zero(fitted.raw.horizon), fitted.facts)


KINDS = (Kind("zero", lambda artefact: Zero(artefact.horizon)), Kind("random", load_network))
