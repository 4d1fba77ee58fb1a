"""A stored potential examined: its report, its certificate, and what should be known before anybody trains with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bkrl.core.files import atomic_write, to_json
from bkrl.core.reporter import Reporter, percent
from bkrl.data.dataset import Dataset
from bkrl.inspect.certificate import CERTIFICATE, Certificate, certify
from bkrl.inspect.quality import describe
from bkrl.inspect.report import REPORT, Report, cautions
from bkrl.potentials import advice_source
from bkrl.potentials.protocol import Scaled


class Examination(NamedTuple):
    """The findings about a potential; `warnings` are sentences."""

    report: Report
    certificate: Certificate
    warnings: list[str]

    def tell(self, reporter: Reporter) -> None:
        """Say what stands out, and warn of what fails or may mislead."""
        ordering = self.report["ordering"]
        above = "" if ordering is None else percent(ordering, 1)
        reporter.say(
            f"Φ differs from its most frequent value in {percent(self.report['coverage'], 1)} of the windows"
            + (f", and puts ends in success above other windows {above} of the time." if above else ".")
        )
        for check in self.certificate.checks:
            if not check.passed:
                reporter.warn(f"Certificate: {check.name} fails: {check.detail}.")
        reporter.say(
            f"Certificate: {self.certificate.summary()}. They ask for one fixed, finite function whose shaping is "
            "exact, not for quality: they say nothing of whether Φ knows anything."
        )
        for warning in self.warnings:
            reporter.warn(warning)

    def write(self, folder: Path) -> list[str]:
        """Write the report and the certificate into `folder`; the names of their files."""
        atomic_write(folder / REPORT, to_json(self.report))
        atomic_write(folder / CERTIFICATE, to_json(self.certificate.to_json()))
        return [REPORT, CERTIFICATE]


def examine(
    potential: Scaled, dataset: Dataset, phi: NDArray[np.float32], training: Mapping[str, Any], seed: int, path: Path
) -> Examination:
    """Describe and certify a potential on the dataset it was built from.

    Args:
        potential, dataset, phi, training: as for `describe`.
        seed: of the windows and rollouts that the certificate is made on.
        path: of its run, for the warnings.
    """
    report = describe(potential, dataset, phi, training)
    certificate = certify(potential, dataset, seed)
    return Examination(report, certificate, cautions(report, potential.artefact.control, advice_source(training), path))
