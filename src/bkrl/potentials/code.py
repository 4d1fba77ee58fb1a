"""Program potentials (BK-Code): a language model's program, run in the sandbox, as a raw potential."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import InputError
from bkrl.data.distinct import NumberedWindows
from bkrl.potentials.protocol import Artefact
from bkrl.sandbox.pool import Sandbox
from bkrl.sandbox.process import Limits

PROGRAM = "program.py"


class CodeRaw:
    """A program in its worker.  The worker starts when the first windows come, and restarts if it was lost."""

    def __init__(
        self,
        source: str,
        obs_shape: tuple[int, ...],
        horizon: int,
        limits: Limits | None = None,
        where: str = "",
        divisors: tuple[int, ...] = (),
    ) -> None:
        self.source = source
        self.obs_shape = obs_shape
        self.horizon = horizon
        self.limits = limits
        self.where = where
        self.divisors = divisors
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The program's worker."""
        if self._sandbox is None:
            self._sandbox = Sandbox(
                self.source, self.obs_shape, self.horizon, limits=self.limits, divisors=self.divisors
            )
        return self._sandbox

    def __call__(self, windows: NumberedWindows) -> NDArray[np.float64]:
        return self.sandbox.evaluate_views(windows.views, windows.index, windows.actions, windows.valid)[0]

    def components(self, windows: NumberedWindows) -> dict[str, NDArray[np.float64]]:
        """The program's named parts, each (B,)."""
        return self.sandbox.evaluate_views(windows.views, windows.index, windows.actions, windows.valid)[1]

    def close(self) -> None:
        """End the worker."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def load(artefact: Artefact) -> CodeRaw:
    """The program of a "code" artefact; InputError when it is not text."""
    path = artefact.part(PROGRAM)
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; run train-rm again.") from None
    return CodeRaw(source, artefact.obs_shape, artefact.horizon, where=str(path))
