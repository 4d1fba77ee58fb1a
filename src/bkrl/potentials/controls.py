"""Control potentials: what a claim about a potential has to beat.

`zero` is plain PPO on the shaping path; `random` is a fixed network with its first weights, on the same kind of scale;
`shuffled` is the same labels, permuted, sent through the same builder (see `kinds.permuted`); `constant` is advice that
is the same in every state, with Φ = 0.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.core.reporter import Reporter
from bkrl.core.seeds import derive_seed
from bkrl.data.dataset import Dataset
from bkrl.data.windows import Reads, Windows
from bkrl.labelers.tables import memory_names, mission_words
from bkrl.potentials.kinds import Fitted, MadeKind, Maker, of_labels
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


def zero(dataset: Dataset, horizon: int) -> Maker:
    """Φ = 0, which sees so many past actions."""
    return lambda seed, reporter: Fitted("zero", Zero(horizon), dataset, {})


def read_zero(labels: Run, dataset: Dataset, *, shuffle: None) -> Maker:
    """Φ = 0, which sees as far back as the potential that it stands for."""
    return zero(dataset, of_labels(labels).horizon(labels))


def read_random(labels: Run, dataset: Dataset, *, shuffle: None) -> Maker:
    """A preference network with its initial weights, which sees what the potential that it stands for sees."""
    words, memory = mission_words(labels, dataset), memory_names(labels, dataset)
    config = net_config(dataset, of_labels(labels).horizon(labels), words, len(memory))

    def make(seed: int, reporter: Reporter) -> Fitted:
        torch.manual_seed(derive_seed(seed, "control", "random"))
        net = PreferenceNet(config, () if words is None else words.words)
        return Fitted("random", PreferenceRaw(net, memory=memory), dataset, {})

    return make


def silenced(fitted: Fitted) -> Fitted:
    """Φ = 0 in the place of a potential, with what is known of that."""
    fitted.raw.close()
    return fitted._replace(kind="zero", raw=Zero(fitted.raw.reads.horizon))


KINDS = (
    MadeKind("zero", lambda artefact: Zero(artefact.horizon), read_zero),
    MadeKind("random", load_network, read_random),
)
