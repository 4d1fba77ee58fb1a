"""Potentials: from labels to one fixed function Φ of a short history.

`load_potential(run)` is all a user of potentials needs; `kinds` says what kinds there are, and how each is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bkrl.potentials.own import Function
    from bkrl.potentials.protocol import Artefact, Scaled
    from bkrl.runs.record import Run

EMPTY = "empty"


def register_potential(kind: str, load: Callable[[Artefact], Function]) -> None:
    """Make a kind of potential known, so that runs of `write_potential` with this kind can be opened.

    Args:
        kind: the name that stands in `potential.json`.
        load: rebuilds the function from what is stored in `artefact.settings`: `load(artefact)(windows)` gives (B,) raw
            values, finite, and the same for the same window in any batch and process.

    Raises:
        UsageError: bkrl has a kind of this name itself.
    """
    from bkrl.core.errors import UsageError
    from bkrl.potentials import kinds

    if kinds.built_in(kind):
        raise UsageError(f"'{kind}' is a kind of potential that bkrl has itself; choose another name.")

    def opened(artefact: Artefact) -> Any:
        from bkrl.potentials.own import OwnRaw

        return OwnRaw(load(artefact), artefact)

    kinds.OWN[kind] = kinds.Kind(kind, opened)


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
    from bkrl.runs.record import Run

    potential = read_potential(Run.open(Path(path), "train-rm").path)
    if potential.artefact.settings.get("advice") is not None:
        from bkrl.potentials import advice

        try:  # what training would refuse later is refused wherever a potential is read
            advice.load(potential.artefact.folder, potential.artefact.settings)
        except BaseException:
            potential.close()
            raise
    return potential


def read_potential(folder: Path) -> Scaled:
    """The potential whose `potential.json` stands in `folder`, whether or not its run is complete."""
    from bkrl.core.errors import InputError
    from bkrl.core.registry import PLUGINS, load_plugins
    from bkrl.potentials import kinds
    from bkrl.potentials.protocol import Artefact, Scaled

    artefact = Artefact.read(folder)
    if artefact.control == "oracle-state":
        raise InputError(f"{folder} holds a full-state oracle, a control that is no longer supported.")
    if not kinds.built_in(artefact.kind):
        load_plugins()
    kind = kinds.find(artefact.kind)
    if kind is None:
        raise InputError(
            f"{folder} holds a potential of kind {artefact.kind!r}, which nothing here registers: name the module "
            f"that does in {PLUGINS}, or take the newer bkrl that made it."
        )
    return Scaled(kind.load(artefact), artefact)


def dataset_path(run: Run, named: Path | None = None) -> Path:
    """The dataset to examine a potential on: the one named, the one it was built on, or for a sample that ships without
    it the sample dataset of its envs.

    Raises:
        InputError: none was named, and the one it was built on is not there.
    """
    from bkrl.runs.inputs import dataset_at, input_at
    from bkrl.runs.samples import SAMPLES, samples

    shipped = Path(f"sample:data-{run.path.name.rpartition('-')[2]}")
    if run.path.parent == SAMPLES and shipped.as_posix() in samples() and input_at(run, "dataset") is None:
        return named or shipped
    return dataset_at(run, named)
