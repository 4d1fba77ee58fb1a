"""A potential under the lens before anything is trained with it: its certificate again, and the potential report."""

from __future__ import annotations

from pathlib import Path

from bkrl.core.errors import InputError
from bkrl.data.dataset import Dataset
from bkrl.inspect.certificate import Certificate, certify
from bkrl.potentials import dataset_of, load_potential
from bkrl.runs.record import Run


def check(path: Path, dataset: Path | None = None) -> Certificate:
    """Run the certificate of a finished potential again, on the dataset it was built on or another of its world.

    Raises:
        InputError: the potential or the dataset is missing, damaged, or of another world.
    """
    run = Run.open(path, "train-rm")
    potential = load_potential(path)
    try:
        data = Dataset.open(dataset_of(run, dataset))
        if potential.artefact.obs_shape != data.obs_shape:
            raise InputError(f"{path} sees observations of another world than {data.env_id}; name its --dataset.")
        return certify(potential, data, int(run.config["config"]["seed"]))
    finally:
        potential.close()
