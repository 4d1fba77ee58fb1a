"""Control potentials: what a claim about a potential has to beat.

`zero` is plain PPO on the shaping path; `random` is a fixed network nobody trained, on the same kind of scale;
`shuffled` is the same labels, permuted, sent through the same builder (see `permuted`).  An oracle, which knows
the task (`oracle.py`), is not for claims.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from bkrl.core.seeds import derive_seed, generator
from bkrl.data.distinct import NumberedWindows
from bkrl.potentials.preference import PreferenceRaw, save_net
from bkrl.potentials.preference import load as load_network
from bkrl.potentials.preference.net import NetConfig, PreferenceNet
from bkrl.potentials.protocol import Artefact, Raw

__all__ = ["Zero", "load", "permuted", "random_network", "save_net"]


class Zero:
    """Φ = 0 everywhere: shaping adds nothing, so whatever it costs or changes is the machinery's."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def __call__(self, windows: NumberedWindows) -> NDArray[np.float64]:
        return np.zeros(len(windows))


def random_network(config: NetConfig, seed: int) -> PreferenceRaw:
    """A preference network with its initial weights: sees what a trained one sees and knows nothing."""
    torch.manual_seed(derive_seed(seed, "control", "random"))
    return PreferenceRaw(PreferenceNet(config))


def permuted(count: int, seed: int) -> NDArray[np.int64]:
    """The order in which `count` labels are dealt out anew: their distribution stays, what they say is gone."""
    return generator(seed, "control", "shuffled").permutation(count)


def load(artefact: Artefact) -> Raw:
    """The control an artefact of kind "zero" or "random" describes."""
    return Zero(artefact.horizon) if artefact.kind == "zero" else load_network(artefact)
