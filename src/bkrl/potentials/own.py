"""A potential of one's own as a run, so that every command that takes a potential takes it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import UsageError
from bkrl.data.windows import Reads, Windows
from bkrl.envs import env_spec
from bkrl.potentials import read_potential
from bkrl.potentials.kinds import kinds
from bkrl.potentials.protocol import FILE, Artefact, Raw, Scale, finite_values
from bkrl.runs.record import Run

VARIANT = "own"
Function = Callable[[Windows], NDArray[np.floating]]
"""(B,) raw values of B windows: finite, and the same for the same window in any batch and process."""


class OwnRaw(Raw):
    """A registered function in the place of bkrl's own kinds."""

    def __init__(self, function: Function, artefact: Artefact) -> None:
        self.function, self._kind = function, artefact.kind
        self.reads = Reads(artefact.horizon, artefact.reads)

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        return finite_values(self.function(windows), len(windows), self._kind)


@dataclass(frozen=True)
class _Recipe:
    kind: str
    env: str
    horizon: int
    scale: tuple[float, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    mission: bool = False


def write_potential(
    out: Path | str,
    kind: str,
    env: str,
    *,
    horizon: int = 0,
    scale: tuple[float, float] = (-1.0, 0.0),
    settings: Mapping[str, Any] | None = None,
    mission: bool = False,
) -> Run:
    """Record a registered potential as a run for `train-rs --alg bk-own --potential OUT`.

    Args:
        out: the run directory.
        kind: a name given to `register_potential`, whose function rebuilds the potential from `settings`.
        env: the environment it is for; it fits all of that family.
        horizon: past actions that it sees.
        scale: raw values (lo, hi) that become -1 and 0; what lies outside is cut off.
        settings: plain values that `load` reads from `artefact.settings`.
        mission: whether it reads `windows.missions`.

    Raises:
        UsageError: the kind is not registered, a setting is called `advice`, or `out` holds another run.
        InputError: `load` refuses the settings.
    """
    if kind not in kinds():
        raise UsageError(f"There is no potential of kind '{kind}'; call bkrl.register_potential first.")
    lo, hi = scale
    if not -math.inf < lo < hi < math.inf:
        raise UsageError(f"The scale of a potential is (lo, hi), two numbers with lo below hi, not {scale}.")
    if not isinstance(horizon, int) or not 0 <= horizon <= 10_000:
        raise UsageError(f"The horizon of a potential is a whole number from 0 to 10,000, not {horizon!r}.")
    if "advice" in (settings or {}):
        raise UsageError("bkrl keeps a setting 'advice' of every potential itself; give yours another name.")
    card = env_spec(env)
    recipe = _Recipe(kind, env, horizon, (float(lo), float(hi)), dict(settings or {}), mission)
    run = Run.create(Path(out), stage="train-rm", config=recipe)
    if run.complete:
        return run
    artefact = Artefact(
        kind=kind,
        horizon=horizon,
        env_id=env,
        env_family=card.family,
        obs_shape=card.obs_shape,
        action_names=card.action_names,
        scale=Scale(*recipe.scale),
        settings=recipe.settings,
        provenance={"variant": VARIANT},
        reads=("mission",) if mission else (),
    )
    try:
        artefact.write(run.path)
        read_potential(run.path).close()
    except Exception:
        run.discard()  # or the folder would be no place for other settings
        raise
    run.finish([FILE], variant=VARIANT, kind=kind, control="none", env_id=env)
    return run
