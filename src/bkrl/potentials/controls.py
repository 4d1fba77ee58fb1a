"""Control potentials: what a claim about a potential has to beat.

`zero` is plain PPO on the shaping path; `random` is a fixed network with its first weights, on the same kind of scale;
`shuffled` is the same labels, permuted, sent through the same builder (see `kinds.permuted`); `constant` is advice that
is the same in every state, with Φ = 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Windows
from bkrl.labelers.tables import memory_names, mission_words
from bkrl.potentials.kinds import Fitted, MadeKind, of_labels
from bkrl.potentials.preference import PreferenceRaw
from bkrl.potentials.preference import load as load_network
from bkrl.potentials.preference.kind import net_config
from bkrl.potentials.preference.net import PreferenceNet
from bkrl.potentials.protocol import Raw
from bkrl.runs.record import Run


class Zero(Raw):
    """Φ = 0 everywhere: shaping adds nothing, so whatever it costs or changes is the machinery's."""

    bounds = (-1.0, 0.0)

    def __init__(self, horizon: int) -> None:
        self.reads = Reads(horizon)

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        return np.zeros(len(windows))


@dataclass(frozen=True)
class Unlabelled:
    """A control that nothing has to be fitted for: what makes it from a seed."""

    kind: str
    dataset: Dataset
    make: Callable[[int], Raw]

    def fit(self, seed: int, reporter: Reporter) -> Fitted:
        """The control as it is."""
        return Fitted(self.kind, self.make(seed), self.dataset, {})


def read_zero(labels: Run, dataset: Dataset, *, shuffle: None) -> Unlabelled:
    """Φ = 0, which sees as far back as the potential that it stands for."""
    horizon = of_labels(labels).horizon(labels)
    return Unlabelled("zero", dataset, lambda seed: Zero(horizon))


def read_random(labels: Run, dataset: Dataset, *, shuffle: None) -> Unlabelled:
    """A preference network with its initial weights, which sees what the potential that it stands for sees."""
    words, memory = mission_words(labels, dataset), memory_names(labels, dataset)
    config = net_config(dataset, of_labels(labels).horizon(labels), words, len(memory))

    def make(seed: int) -> PreferenceRaw:
        torch.manual_seed(derive_seed(seed, "control", "random"))
        return PreferenceRaw(PreferenceNet(config, () if words is None else words.words), memory=memory)

    return Unlabelled("random", dataset, make)


def silenced(fitted: Fitted) -> Fitted:
    """Φ = 0 in the place of a potential, with what is known of that."""
    fitted.raw.close()
    return fitted._replace(kind="zero", raw=Zero(fitted.raw.reads.horizon))


KINDS = (
    MadeKind("zero", lambda artefact: Zero(artefact.horizon), read_zero),
    MadeKind("random", load_network, read_random),
)
