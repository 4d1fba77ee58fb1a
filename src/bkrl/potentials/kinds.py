"""The kinds of potentials: what each is made from, how it is fitted, how it is opened again.

A new kind that is made from labels is one module that ends in `KINDS = (LabelledKind(…),)`, and its line in `_MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bkrl.core.reporter import Reporter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bkrl.data.dataset import Dataset
    from bkrl.potentials.protocol import Artefact, Raw
    from bkrl.runs.record import Run

# kind → where it stands; imported only when such a potential is made or opened
_MODULES = {
    "code": "bkrl.potentials.code",
    "preference": "bkrl.potentials.preference.kind",
    "goal": "bkrl.potentials.goal.kind",
    "zero": "bkrl.potentials.controls",
    "random": "bkrl.potentials.controls",
    "state": "bkrl.potentials.parts",
    "rest": "bkrl.potentials.parts",
}
UNLABELLED = ("zero", "random")
"""The kinds that read no label: controls."""
OWN: dict[str, Kind] = {}
"""The kinds that were registered; the last one of a name counts."""


class Fitted(NamedTuple):
    """A raw potential, its kind, the dataset it was made from, and what its making found: plain values for manifest and
    report.
    """

    kind: str
    raw: Raw
    dataset: Dataset
    facts: Mapping[str, Any]


Maker = Callable[[int, Reporter], Fitted]
"""Makes the potential of what has been read, from a seed, and says what a person should know of how that went.
RunFailed where a program fails in the sandbox.
"""


@dataclass(frozen=True)
class Kind:
    """One kind of potential.

    Attributes:
        name: what `potential.json` calls it.
        load: the raw potential that an artefact describes; InputError where it is damaged.
    """

    name: str
    load: Callable[[Artefact], Raw]


@dataclass(frozen=True)
class MadeKind(Kind):
    """One that train-rm makes.

    Attributes:
        read: `read(labels, dataset, shuffle=…, **settings)` → what makes it; `shuffle`: None to leave the labels as
            they are. InputError where no potential can be made of them, UsageError for a setting that this kind
            cannot have.
        settings: the settings of train-rm that `read` takes.
    """

    read: Callable[..., Maker]
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LabelledKind(MadeKind):
    """One that is made from labels.

    Attributes:
        variant: of the labels.
        horizon: past actions that a potential made from these labels sees; a control of them sees as many.
    """

    variant: str
    horizon: Callable[[Run], int]


class Shuffle(NamedTuple):
    """How labels are dealt out anew: by this seed, and this share of them alone."""

    seed: int
    share: float = 1.0


def permuted(count: int, shuffle: Shuffle) -> NDArray[np.int64]:
    """The order in which `count` labels are dealt out anew: their distribution stays, what they say is gone. Of one
    seed a larger share holds the labels of a smaller one.
    """
    import numpy as np

    from bkrl.core.seeds import generator

    order = generator(shuffle.seed, "control", "shuffled").permutation(count)
    if shuffle.share >= 1:
        return order
    dealt, moved = np.arange(count), order[: round(shuffle.share * count)]
    dealt[np.sort(moved)] = moved
    return dealt


def kinds() -> list[str]:
    """All kinds that can be opened: those of bkrl, and those that were registered."""
    return [*_MODULES, *OWN]


def built_in(name: str) -> bool:
    """Whether bkrl has a kind of this name itself."""
    return name in _MODULES


def find(name: str) -> Kind | None:
    """The kind of this name; None where there is none."""
    if name not in _MODULES:
        return OWN.get(name)
    found: dict[str, Kind] = {kind.name: kind for kind in import_module(_MODULES[name]).KINDS}
    return found[name]


def made_from(labels: Run, control: str) -> MadeKind:
    """The kind that is made from these labels or, of a control that reads none, the control's own."""
    return cast(MadeKind, find(control)) if control in UNLABELLED else of_labels(labels)


def of_labels(labels: Run) -> LabelledKind:
    """The kind that is made from these labels; InputError where this bkrl knows none."""
    from bkrl.labelers.tables import variant_of

    variant = variant_of(labels)
    made_of_labels = (kind for kind in map(find, _MODULES) if isinstance(kind, LabelledKind))
    return next(kind for kind in made_of_labels if kind.variant == variant)
