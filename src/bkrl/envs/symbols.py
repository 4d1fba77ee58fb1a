"""What the numbers in a symbolic observation mean: what a network must know of them, and whoever varies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_CATEGORY = 31
"""An entry whose highest value is above this is a quantity, not a category."""


@dataclass(frozen=True)
class Symbols:
    """What the J entries of a flattened uint8 observation mean.

    Attributes:
        sizes: (J,) categories of each entry; 0 marks a quantity in 0..255, which counts v / 255. A value beyond the
            last category counts as the last one.
        reference: (J,) the value that is so ordinary that it needs no row of its own (the bias stands for it); -1:
            none.
        gate: (J,) an entry that must be at least 2 for this one to mean anything; -1: none. (In MiniGrid, 0 and 1 are
            the unseen and the empty cell, whose colour is written as red.)
        pointer: (entry, targets): one more entry is read, the one that `entry` points at: targets[value]. (In
            Crafter: what is faced.) None: none.
    """

    sizes: tuple[int, ...]
    reference: tuple[int, ...]
    gate: tuple[int, ...]
    pointer: tuple[int, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        """ValueError where an entry points at nothing: kernels that read symbols do not look."""
        J, targets = len(self.sizes), (self.pointer[0], *self.pointer[1]) if self.pointer else (0, 0)
        if not len(self.reference) == len(self.gate) == J or len(targets) < 2 or not all(0 <= t < J for t in targets):
            raise ValueError("symbols describe another number of entries than there are")
        for values, least, most in ((self.sizes, 0, 256), (self.reference, -1, 255), (self.gate, -1, J - 1)):
            if not all(least <= value <= most for value in values):
                raise ValueError(f"symbols hold a number that is not within {least} and {most}")

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Symbols:
        """Every category has a row."""
        none = (-1,) * len(sizes)
        return cls(tuple(sizes), none, none)

    @classmethod
    def of_bounds(cls, high: NDArray[Any]) -> Symbols:
        """From the upper bounds of an observation space: small ones count categories, large ones bound a quantity."""
        return cls.of_sizes([int(top) + 1 if top <= LARGEST_CATEGORY else 0 for top in np.asarray(high).reshape(-1)])

    @classmethod
    def of_minigrid(cls, cells: int) -> Symbols:
        """A view of MiniGrid cells: object type (11), colour (6), state (4: a door's, or where an agent looks)."""
        gate = [g for cell in range(cells) for g in (-1, 3 * cell, 3 * cell)]
        return cls((11, 6, 4) * cells, (1, -1, 0) * cells, tuple(gate))

    @classmethod
    def of_shape(cls, obs_shape: Sequence[int], high: NDArray[Any] | None = None) -> Symbols:
        """What shape and bounds tell: a small (W, H, 3) view with bounds of 255, or without, is read as MiniGrid's,
        otherwise the bounds decide.

        Args:
            obs_shape: shape of one observation.
            high: upper bounds of the observation space, of that shape; without them every entry is a quantity.
        """
        shape = tuple(obs_shape)
        if len(shape) == 3 and shape[-1] == 3 and (high is None or np.min(high) == 255):
            return cls.of_minigrid(shape[0] * shape[1])
        return cls.of_bounds(np.full(shape, 255) if high is None else high)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def tables(self) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], int]:
        """Row (J', 256) of each value of each entry (-1: none), its weight (J', 256), gates (J',), number of rows.

        J' counts the entry behind the pointer too.
        """
        sizes, reference, gate = list(self.sizes), list(self.reference), list(self.gate)
        if self.pointer is not None:
            target = self.pointer[1][0]
            sizes.append(sizes[target])
            reference.append(-1)
            gate.append(-1)
        rows = np.full((len(sizes), 256), -1, np.int32)
        weights = np.ones((len(sizes), 256), np.float32)
        count = 0
        for entry, size in enumerate(sizes):
            if size == 0:
                rows[entry, 1:] = count
                weights[entry] = np.arange(256, dtype=np.float32) / 255
                count += 1
                continue
            for value in range(size):
                if value != reference[entry]:
                    rows[entry, value] = count
                    count += 1
            rows[entry, size:] = rows[entry, size - 1]
        return rows, weights, np.array(gate, np.int32), count
