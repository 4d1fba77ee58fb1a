"""What a potential is, what scale it lives on, and the artefact it is stored as.

Φ(h) = clip((raw(h) - hi) / (hi - lo), -1, 0), where lo and hi are the 1st and 99th percentile of raw on the dataset the
labels came from: fixed when the potential is built, stored, and never changed by training.  Φ is at most 0 and its
best states are near 0, because with Φ(terminal) = 0 a positive Φ would make ending an episode a loss until the critic
has learnt otherwise (Müller & Kudenko 2025, arXiv 2502.01307; Grześ 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bkrl.core.documents import Mismatch, typed
from bkrl.core.errors import InputError, RunFailed
from bkrl.core.files import atomic_write, check_files, read_json, sha256, to_json
from bkrl.core.flags import Flag
from bkrl.data.windows import Reads, Rollout, Windows
from bkrl.envs import memory_of

FORMAT = 1
FILE = "potential.json"


@runtime_checkable
class Potential(Protocol):
    """A fixed function of a short history: no gradient, no state, the same for any batch size and in any process."""

    reads: Reads

    def __call__(self, windows: Windows) -> NDArray[np.float32]:
        """(B,) float32 in [-1, 0] for windows of this horizon."""


def finite_values(values: Any, count: int, name: str) -> NDArray[np.float64]:
    """What a function from outside gave for `count` windows, as (B,) float64; RunFailed unless it is one finite number
    for each.
    """
    found = np.asarray(values, np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise RunFailed(
            f"The potential '{name}' must give {count} finite numbers for {count} windows; it gave an array of shape "
            f"{found.shape}" + (" with others in it." if found.shape == (count,) else ".")
        )
    return found


class ActionTable(Protocol):
    """How sensible each action is, by the potential's own word."""

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        """(B, A) float64, finite; only differences between the actions of a window count."""

    def close(self) -> None:
        """Free what it holds."""


class Raw(Protocol):
    """A potential before its scale: what the module of each kind provides, as a subclass."""

    reads: Reads
    bounds: tuple[float, float] | None = None
    """The scale, where what the potential is made from says it; else it is measured on the dataset."""

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        """(B,) float64, finite, on a scale of its own, of windows whose symbols are distinct; `missions` and `memory`
        are there where it reads them.
        """

    def advises(self, actions: int) -> ActionTable | None:
        """What the potential itself says of so many actions; None where it says nothing."""
        return None

    def save(self, folder: Path) -> tuple[list[str], dict[str, Any]]:
        """Write what `load` needs into `folder`: the names of the files, and the settings of the artefact."""
        return [], {}

    def close(self) -> None:
        """End what runs beside this process (a program's sandbox)."""
        return None


@dataclass(frozen=True)
class Scale:
    """The affine map from raw values to Φ; `lo` maps to -1 and `hi` to 0."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        if not self.lo < self.hi:
            raise ValueError(f"the scale from {self.lo:g} to {self.hi:g} is none")

    @classmethod
    def measure(cls, raw: NDArray[np.float64], what: str = "The potential") -> Scale:
        """The 1st and 99th percentile of (B,) raw values; minimum and maximum where those coincide (sparse values).

        Raises:
            InputError: the values are constant or not finite, so that shaping with them would do nothing or harm.
        """
        if not np.isfinite(raw).all():
            raise InputError(f"{what} is not finite on {int((~np.isfinite(raw)).sum())} windows of the dataset.")
        lo, hi = (float(value) for value in np.percentile(raw, [1, 99], method="closest_observation"))
        if lo == hi:
            lo, hi = float(raw.min()), float(raw.max())
        if lo == hi:
            raise InputError(
                f"{what} is {lo:g} on every window of the dataset, so it cannot shape anything; check its units, or "
                "label again."
            )
        return cls(lo, hi)

    def __call__(self, raw: NDArray[np.float64]) -> NDArray[np.float32]:
        """(B,) raw values → (B,) Φ in [-1, 0]."""
        return np.clip((raw - self.hi) / (self.hi - self.lo), -1.0, 0.0).astype(np.float32)


@dataclass(frozen=True)
class Artefact:
    """`potential.json`: everything that is needed to evaluate a potential again, and where it came from.

    Attributes:
        kind: "code", "preference", "goal", "zero", "random", "state", "rest" or one that was registered.
        horizon: H, past actions in a window.
        env_id, env_family: the env the labels came from; a potential is valid for envs of its family.
        obs_shape, action_names: the units it was built for.
        scale: lo and hi of the raw values.
        files: name → SHA-256 of the parts beside potential.json.
        settings: what the kind needs to rebuild itself (sizes, encoder, thresholds).
        control: "none", "shuffled", "random", "zero", "constant" or "oracle".
        provenance: manifests' hashes of dataset and labels, who labelled, seed.
        reads: what the potential sees beside observations and actions: "mission", "memory", both or nothing.
    """

    kind: str
    horizon: Annotated[int, Flag("", least=0, most=10_000)]
    env_id: str
    env_family: str
    obs_shape: tuple[Annotated[int, Flag("", least=1)], ...]
    action_names: tuple[str, ...]
    scale: Scale
    files: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    control: str = "none"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[Literal["mission", "memory"], ...] = ()
    folder: Path = Path()

    def write(self, folder: Path) -> Path:
        """Write potential.json into `folder`, with the hashes of the files named in `files`."""
        document = {"format": FORMAT, **asdict(self)}
        document.pop("folder")
        if not self.reads:  # as earlier versions wrote it
            document.pop("reads")
        document["files"] = {name: sha256(folder / name) for name in self.files}
        path = folder / FILE
        atomic_write(path, to_json(document))
        return path

    @classmethod
    def read(cls, folder: Path) -> Artefact:
        """Read and verify potential.json and the files it names; InputError when anything is missing or changed."""
        path = Path(folder) / FILE
        document = read_json(path)
        if document.pop("format", None) != FORMAT:
            raise InputError(f"{path} has another format than this bkrl reads ({FORMAT}); run train-rm again.")
        try:
            artefact: Artefact = replace(typed(cls, document), folder=Path(folder))
        except Mismatch as problem:
            raise InputError(f"{path} is damaged: {problem}; run train-rm again.") from None
        check_files(path.parent, {Path(name).name: one for name, one in artefact.files.items()}, "run train-rm again")
        return artefact

    def read_settings(self, kind: Any) -> Any:
        """`settings` as a type; InputError when they are of another."""
        try:
            return typed(kind, dict(self.settings), "settings")
        except Mismatch as problem:
            raise InputError(f"{self.folder / FILE} is damaged: {problem}; run train-rm again.") from None

    def check_memory(self, read: tuple[str, ...]) -> None:
        """InputError where a potential reads a memory of these fields, and this bkrl has another one."""
        memory = memory_of(self.env_id) if read else None
        if read and (memory is None or read != memory.names):
            raise InputError(
                f"{self.folder} holds a potential that reads {', '.join(read)}, and this bkrl remembers other things "
                f"of episodes in {self.env_id}; label again."
            )

    def check_fits(self, source: object, of: Any, family: str = "") -> None:
        """InputError where `of`, an env or a dataset, has other observations or actions, or another `family`."""
        known = self.env_family, self.obs_shape, self.action_names
        if known != (family or self.env_family, of.obs_shape, of.action_names):
            raise InputError(
                f"{source} was built in {self.env_id}, and {of.env_id} has other observations or actions; choose a "
                "potential and experience of one family of envs."
            )

    def part(self, name: str) -> Path:
        """The path of one of `files`."""
        if name not in self.files:
            raise InputError(f"{self.folder / FILE} does not name {name}; run train-rm again.")
        return self.folder / name


class Scaled:
    """A raw potential on its stored scale: the `Potential` everything else sees."""

    def __init__(self, raw: Raw, artefact: Artefact) -> None:
        self.raw = raw
        self.artefact = artefact
        self.reads = Reads(artefact.horizon, artefact.reads)

    def __call__(self, windows: Windows) -> NDArray[np.float32]:
        self._check_shape(windows.symbols.shape[1:])
        if windows.actions.max(initial=-1) >= len(self.artefact.action_names):
            raise InputError(
                f"This potential knows {len(self.artefact.action_names)} actions, numbered from 0; it got number "
                f"{windows.actions.max()}."
            )
        if windows.horizon != self.reads.horizon:
            windows = windows.last(self.reads.horizon)
        return self.of_numbered(windows.numbered())

    def of_rollout(self, rollout: Rollout, first: int = 0) -> NDArray[np.float32]:
        """Φ of the windows at rows `first`..T of every env and then of the final windows, in one flat array."""
        self._check_shape(rollout.views.symbols.shape[2:])
        return self.of_numbered(rollout.numbered_windows(self.reads.horizon, first))

    def of_numbered(self, windows: Windows) -> NDArray[np.float32]:
        """(B,) Φ of windows whose views are numbered already."""
        if len(windows) == 0:
            return np.zeros(0, np.float32)
        if not self.reads.mission:
            windows = replace(windows, missions=None)
        elif windows.missions is None:
            raise InputError(
                f"{self.artefact.folder} holds a potential that reads the mission, and these windows come without one."
            )
        if not self.reads.memory:
            windows = replace(windows, memory=None)
        elif windows.memory is None:
            raise InputError(
                f"{self.artefact.folder} holds a potential that reads the memory of episodes, and these windows come "
                "without one."
            )
        distinct, inverse = windows.distinct()
        return self.artefact.scale(self.raw(distinct))[inverse]

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if tuple(shape) != tuple(self.artefact.obs_shape):
            raise InputError(
                f"This potential was built for observations of shape {tuple(self.artefact.obs_shape)} "
                f"({self.artefact.env_family}); it got {tuple(shape)}."
            )

    def close(self) -> None:
        """End what the potential runs beside this process."""
        self.raw.close()
