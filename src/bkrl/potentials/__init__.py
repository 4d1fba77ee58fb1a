"""Potentials: from labels to one fixed function Φ of a short history, and how it shapes rewards.

`load_potential(run)` is all a user of potentials needs; the kinds and their builders stand in the modules beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bkrl.potentials.protocol import Scaled
    from bkrl.run import Run

# kind → module with `load(artefact) -> Raw | Scaled`; imported only when such a potential is opened
_KINDS = {
    "code": "bkrl.potentials.code",
    "preference": "bkrl.potentials.preference",
    "goal": "bkrl.potentials.goal",
    "zero": "bkrl.potentials.controls",
    "random": "bkrl.potentials.controls",
    "state": "bkrl.potentials.oracle_state",
}


EMPTY = "empty"


def advice_source(training: Mapping[str, Any]) -> str | None:
    """Where a potential's advice on actions comes from: "potential", "program", or EMPTY (Ψ = 0); None where there is
    none at all. `training`: the fact or entry of that name in a train-rm run's manifest or potential report.
    """
    fit = training.get("advice")
    return None if fit is None else EMPTY if fit.get("scale") is None else str(fit["source"])


def load_potential(path: Path) -> Scaled:
    """The potential a train-rm run built: `potential(windows) -> (B,) float32` in [-1, 0].

    Args:
        path: the run directory of `bkrl train-rm`, or `sample:NAME` (`bkrl list potentials` shows them).

    Raises:
        InputError: no complete train-rm run is there, a file was changed, or the artefact is of an unknown format.
    """
    from bkrl.run import Run

    return read_potential(Run.open(Path(path), "train-rm").path)


def dataset_of(run: Run, named: Path | None = None) -> Path:
    """The dataset to examine a potential on: the one named, the one it was built on, or for a sample that ships without
    it the sample dataset of its worlds.

    Raises:
        InputError: none was named, and the one it was built on is not there.
    """
    from bkrl.run import SAMPLES, dataset_at, input_at, samples

    shipped = Path(f"sample:data-{run.path.name.rpartition('-')[2]}")
    if run.path.parent == SAMPLES and shipped.as_posix() in samples() and input_at(run, "dataset") is None:
        return named or shipped
    return dataset_at(run, named)


def read_potential(folder: Path) -> Scaled:
    """The potential whose `potential.json` stands in `folder`, whether or not its run is complete."""
    from importlib import import_module

    from bkrl.errors import InputError
    from bkrl.potentials.protocol import Artefact, Scaled

    artefact = Artefact.read(folder)
    module = _KINDS.get(artefact.kind)
    if module is None:
        raise InputError(f"{folder} holds a potential of unknown kind '{artefact.kind}'; it was made by a newer bkrl.")
    loaded = import_module(module).load(artefact)
    return loaded if isinstance(loaded, Scaled) else Scaled(loaded, artefact)
